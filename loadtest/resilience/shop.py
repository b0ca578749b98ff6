"""A shop on the stores of the environment, its clients over raw HTTP, and the verdict on both."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Self

from django.db import connections

from devservers import HOST, Server, start_all, stop_all
from devservers.faults.waiting import until
from loadtest.load.http.buyers import Buyer, get, sign_in
from loadtest.load.sale import open_sale
from loadtest.resilience.processes import Celery, Consumer, Web
from locking import locks, policy
from shop.administration.audit import audit_sale
from shop.models import Order, Sale

REPLY_TIMEOUT, TIMEOUT = 30.0, 60.0
BOUGHT = (201, 303)
Report = dict[str, Any]
BUYERS, MAX_UNITS = 100, 10_000
"""Buyers send form after form, each with a new key, for up to MAX_UNITS units per buyer."""


class Shop:
    """Web, worker, consumer and beats until the block ends, and an open sale under a lock."""

    def __init__(self, *, stock: int, beats: int = 0, buyers: int = BUYERS) -> None:
        policy.switch(backend="redis", mode="conditional", reason="lab endure", force=True)
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
        """Open a sale of its own product."""
        limit = min(stock, MAX_UNITS)
        return open_sale(slug, stock, product=slug, limit_per_customer=limit, **options)

    def browse(self) -> int:
        """Request the sale page without a session; return the status."""
        return fetch(self.web.port, get(self.page))[0]

    def buy(self) -> int:
        """Send the next form and return the status; forms without a response count too."""
        return fetch(self.web.port, self.form(self.sale)[1])[0]

    def form(self, sale: Sale) -> tuple[Buyer, bytes]:
        """Return the next buyer and its form, with a new key, as an HTTP request."""
        number = next(self._numbers)
        buyer = self.buyers[number % len(self.buyers)]
        form = buyer.form(sale, key=f"form-{number}", is_first=False)
        return buyer, buyer.post(f"{sale.get_absolute_url()}buy/", form)

    def processes(self) -> dict[str, int]:
        """Return the pids of the shop's processes by name."""
        found = {server.name: server.pid for server in self.servers}
        for server in self.servers:
            found |= {f"{server.name} child {n}": pid for n, pid in enumerate(server.children(), 1)}
        return found


class Reply(NamedTuple):
    """The status of one request, 0 for no response; times are monotonic seconds."""

    status: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """The duration of the request."""
        return self.ended - self.began


def fetch(port: int, message: bytes) -> tuple[int, bytes]:
    """Return the status, 0 for no response, and all received bytes."""
    received = b""
    try:
        with closing(socket.create_connection((HOST, port), timeout=REPLY_TIMEOUT)) as connection:
            connection.sendall(message.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while more := connection.recv(65536):
                received += more
    except OSError:
        pass
    return int(received[9:12]) if received[:5] == b"HTTP/" else 0, received


@contextmanager
def in_threads(work: Callable[[threading.Event], None], threads: int) -> Iterator[None]:
    """Run `work` in several threads; when the block ends, the event tells them to return."""
    over = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work, over) for _ in range(threads)]
        try:
            yield
        finally:
            over.set()
    for one in running:
        one.result()


@contextmanager
def load(act: Callable[[], int], threads: int, *, pause: float = 0.0) -> Iterator[list[Reply]]:
    """Repeat `act` in several threads while the block lasts; the list grows with the replies."""
    replies: list[Reply] = []

    def repeat(over: threading.Event) -> None:
        while not over.is_set():
            began = time.monotonic()
            status = act()
            replies.append(Reply(status, began, time.monotonic()))
            over.wait(pause)

    with in_threads(repeat, threads):
        yield replies


def resources(pids: Iterable[int]) -> dict[str, int]:
    """Return the kilobytes, threads and descriptors of the processes, added up."""
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


def verdict(breaches: list[str], **facts: Any) -> Report:
    """Return the report: the facts, the breaches and "ok" if there is no breach."""
    return {**facts, "breaches": breaches, "verdict": "failed" if breaches else "ok"}


def next_purchase(replies: list[Reply], since: float, ends_after: float = 0.0) -> float:
    """Wait for a purchase that began and ended after these times; return its end."""

    def ends() -> list[float]:
        latest = takewhile(lambda one: one.ended > max(since, ends_after), reversed(replies))
        return [one.ended for one in latest if one.began > since and one.status in BOUGHT]

    return min(until(ends, "a purchase", TIMEOUT))


def statuses(replies: list[Reply]) -> dict[str, int]:
    """Return the number of replies by status."""
    return {str(status): n for status, n in sorted(Counter(one.status for one in replies).items())}


def breaches_of(shop: Shop, replies: list[Reply]) -> list[str]:
    """Return the breaches of the final ledger and the responses that a shop must not send."""
    won = sum(one.status in BOUGHT for one in replies)
    wrong = sorted({one.status for one in replies if one.status >= 500} - {503})
    return ledger_breaches(shop.sale, won) + [f"a response was {status}" for status in wrong]


def ledger_breaches(sale: Sale, acknowledged: int) -> list[str]:
    """Return the breaches of the final ledger, which has at least the acknowledged orders."""
    breaches = list[str](audit_sale(sale=sale).breaches)
    if not acknowledged:
        breaches.append("no purchase was acknowledged")
    found = Order.objects.filter(sale=sale).count()
    if found < acknowledged:
        breaches.append(f"{acknowledged} orders were acknowledged, {found} exist")
    return breaches
