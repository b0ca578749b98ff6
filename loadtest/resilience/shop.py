"""A shop on the stores of the environment, a sale, and buyers over raw HTTP."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from devservers import HOST, Server, start_all, stop_all
from inventory.models import Product
from loadtest.load.http_buyers import Buyer, sign_in
from loadtest.resilience.parts import Celery, Consumer, Web, processes_of
from locking import locks, policy
from shop.models import Sale
from shop.purchase import tokens
from shop.sales.queries import create_sale

OPEN_FOR = timedelta(days=1)
PATIENCE = 30.0
BUYERS, MOST = 100, 10_000
"""They buy again and again, each time with another form, up to MOST pieces each."""


class Shop:
    """Web, worker, consumer and beats until the block ends, and an open sale that a lock guards."""

    def __init__(self, *, stock: int, beats: int = 0, buyers: int = BUYERS) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        policy.switch(backend="redis", strategy="conditional", reason="lab endure", force=True)
        self.sale = self.open_sale("lab", stock)
        self.page = self.sale.get_absolute_url()
        self.buyers = sign_in(buyers)
        self._numbers = count()
        self.web, self.worker, self.consumer = Web(2), Celery("worker"), Consumer()
        self.beats = [Celery(f"beat {number + 1}") for number in range(beats)]
        connections.close_all()
        locks.close()

    def __enter__(self) -> Self:
        start_all(self.servers)
        return self

    def __exit__(self, *exc_info: object) -> None:
        stop_all(self.servers)

    @property
    def servers(self) -> list[Server]:
        """All servers; web and worker have child processes."""
        return [self.web, self.worker, self.consumer, *self.beats]

    @staticmethod
    def open_sale(slug: str, stock: int, **options: Any) -> Sale:
        """Of a product of its own, open for a day."""
        product = Product.objects.create(slug=slug, name=f"Lab product {slug}", price=Decimal(1))
        now = timezone.now()
        return create_sale(
            product=product,
            slug=slug,
            price=product.price,
            quantity=stock,
            opens_at=now - OPEN_FOR,
            closes_at=now + OPEN_FOR,
            limit_per_customer=min(stock, MOST),
            **options,
        )

    def browse(self) -> "Told":
        """Anybody's look at the sale."""
        return ask(self.web.port, f"GET {self.page} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())

    def buy(self) -> "Told":
        """A customer's next form, with a key of its own; who never got an answer counts, too."""
        return ask(self.web.port, self.form(self.sale)[1])

    def form(self, sale: Sale) -> tuple[Buyer, bytes]:
        """That form as it goes over the wire, and whose it is."""
        number = next(self._numbers)
        buyer, key = self.buyers[number % len(self.buyers)], f"form-{number}"
        token, _ = tokens.issue(
            customer_id=buyer.user.pk,
            sale_id=sale.pk,
            key=key,
            session=buyer.session,
            is_first=False,
        )
        form = {"idempotency_key": key, "purchase_token": token, "quantity": 1}
        form["csrfmiddlewaretoken"] = buyer.csrf
        return buyer, buyer.post(f"{sale.get_absolute_url()}buy/", urlencode(form))

    def processes(self) -> dict[str, int]:
        """Every process of the shop by what it is."""
        return {name: pid for one in self.servers for name, pid in processes_of(one).items()}

    def pids(self) -> list[int]:
        """Of all of them."""
        return list(self.processes().values())


class Told(NamedTuple):
    """What one request was told, 0 for no answer; monotonic seconds."""

    status: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def ask(port: int, request: bytes) -> Told:
    """One request on a connection of its own."""
    began = time.monotonic()
    status, _ = fetch(port, request)
    return Told(status, began, time.monotonic())


def fetch(port: int, request: bytes) -> tuple[int, bytes]:
    """The status, 0 for no answer, and all that was said."""
    said = b""
    try:
        with closing(socket.create_connection((HOST, port), timeout=PATIENCE)) as line:
            line.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while more := line.recv(65536):
                said += more
    except OSError:
        pass
    return int(said[9:12]) if said[:5] == b"HTTP/" else 0, said


@contextmanager
def crowd(act: Callable[[], Told], threads: int, *, pause: float = 0.0) -> Iterator[list[Told]]:
    """So many who act again and again while the block lasts; what they were told, as it comes."""
    told: list[Told] = []
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            told.append(act())
            over.wait(pause)

    people = [threading.Thread(target=go_on, daemon=True) for _ in range(threads)]
    for one in people:
        one.start()
    try:
        yield told
    finally:
        over.set()
        for one in people:
            one.join(PATIENCE)


def answers(port: int) -> bool:
    """Whether a store serves again: MariaDB greets, Redis answers a PING."""
    try:
        with socket.create_connection((HOST, port), timeout=0.2) as line:
            line.settimeout(0.2)
            line.sendall(b"PING\r\n")
            return bool(line.recv(1))
    except OSError:
        return False


def weight(pids: list[int]) -> dict[str, int]:
    """Kilobytes, threads and descriptors of processes, together."""
    sums = {"kb": 0, "threads": 0, "descriptors": 0}
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            sums["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        sums["kb"] += int(fields.get("VmRSS", "0").split()[0])  # a process that has ended has none
        sums["threads"] += int(fields["Threads"])
    return sums
