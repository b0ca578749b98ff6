"""A web server and a worker on the stores of the environment, a sale, and buyers over raw HTTP."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlencode

from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from inventory.models import Product
from loadtest.processes import HOST, Server, start_all, stop_all
from loadtest.purchase.crowd import sign_in
from loadtest.purchase.web import Web
from locking import locks, policy
from shop import tickets
from shop.celery import app
from shop.models import Sale
from shop.sales import create_sale

ROOT = Path(__file__).resolve().parents[2]
OPEN_FOR = timedelta(days=1)
PATIENCE = 30.0
BUYERS, MOST = 100, 10_000
"""They buy again and again, each time with another form, up to MOST pieces each."""


class Worker(Server):
    """Celery's, as the demo starts it."""

    @property
    def url(self) -> str:
        return f"worker-{self.port}@localhost"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "celery", "-q", "--workdir", str(ROOT), "-A", "shop"]
        return [*command, "worker", "-l", "INFO", "-c", "1", "-n", self.url]

    def answers(self) -> bool:
        return bool(app.control.ping(destination=[self.url], timeout=0.5))


class Shop:
    """Both, until the block ends, and one open sale that the lock in Redis guards."""

    def __init__(self, *, stock: int) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        policy.switch(backend="redis", discipline="conditional", reason="lab endure", force=True)
        product = Product.objects.create(slug="lab", name="Lab product", price=Decimal(1))
        now = timezone.now()
        self.sale: Sale = create_sale(
            product=product,
            slug="lab",
            price=product.price,
            quantity=stock,
            opens_at=now - OPEN_FOR,
            closes_at=now + OPEN_FOR,
            limit_per_customer=min(stock, MOST),
        )
        self.page = self.sale.get_absolute_url()
        self.buyers = sign_in(BUYERS)
        self._numbers = count()
        self.web, self.worker = Web(2), Worker()
        connections.close_all()
        locks.close()

    def __enter__(self) -> Self:
        start_all([self.web, self.worker])
        return self

    def __exit__(self, *exc_info: object) -> None:
        stop_all([self.web, self.worker])

    def browse(self) -> "Told":
        """Anybody's look at the sale."""
        return ask(self.web.port, f"GET {self.page} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())

    def buy(self) -> "Told":
        """A customer's next form, with a key of its own; who never got an answer counts, too."""
        number = next(self._numbers)
        buyer, key = self.buyers[number % len(self.buyers)], f"form-{number}"
        ticket, _ = tickets.issue(
            customer_id=buyer.user.pk,
            sale_id=self.sale.pk,
            key=key,
            session=buyer.session,
            is_first=False,
        )
        form = {"idempotency_key": key, "ticket": ticket, "quantity": 1}
        form["csrfmiddlewaretoken"] = buyer.csrf
        return ask(self.web.port, buyer.post(f"{self.page}buy/", urlencode(form)))

    def pids(self) -> list[int]:
        """Of the web's and the worker's processes."""
        found = []
        for server in (self.web, self.worker):
            found += [server.pid, *children(server.pid)]
        return found


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
    began, said = time.monotonic(), b""
    try:
        with closing(socket.create_connection((HOST, port), timeout=PATIENCE)) as line:
            line.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while more := line.recv(65536):
                said += more
    except OSError:
        pass
    status = int(said[9:12]) if said[:5] == b"HTTP/" else 0
    return Told(status, began, time.monotonic())


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


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


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
        sums["kb"] += int(fields["VmRSS"].split()[0])
        sums["threads"] += int(fields["Threads"])
    return sums
