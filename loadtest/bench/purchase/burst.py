"""Queued sales under a burst: reservations accepted, orders written, and the wait for an order.

While the burst runs, a few more buyers act like browsers: they send the form, then poll the
reservation until it has an order. Their polls go to a web server of their own, so that the workers'
CPU is that of purchases. One consumer runs beside them on the same machine.
"""

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from devservers import HOST
from devservers.process import with_parent_death_signal
from loadtest.bench.purchase.measure import Figures, breaches, figures, percentiles, run_load
from loadtest.bench.purchase.web import WebServer
from loadtest.bench.services import redis_cpu_us
from loadtest.load.http.buyers import Buyer, get, requests
from loadtest.load.http.client import Connection
from shop.models import Order, Sale
from shop.reservations import reconciliation
from shop.web.reservations import FIRST_MS

CONNECTIONS = 50
POLLERS = 6
POLL_SECONDS = FIRST_MS / 1000
"""As the page of a reservation polls at first."""
TIMEOUT = 60.0


@contextmanager
def consumer(sale: Sale) -> Iterator[None]:
    """Load a queued sale and run one process that writes its orders until the block ends."""
    reconciliation.load(sale=sale)
    command = [sys.executable, "-m", "django", "consume_orders"]
    with subprocess.Popen(with_parent_death_signal(command)) as process:
        try:
            yield
        finally:
            process.terminate()


@dataclass
class Pollers:
    """Buyers who poll their reservations: the seconds until the order, and what each poll found."""

    port: int
    polled: WebServer
    path: str
    sale: Sale
    buyers: Iterator[Buyer]
    waits: list[float] = field(default_factory=list)
    polls: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def repeat(self) -> None:
        """Let one buyer after the other buy and wait, until `over` is set."""
        while not self.over.is_set():
            try:
                self.buy()
            except (OSError, KeyError, ValueError) as error:
                self.failures.append(repr(error))

    def buy(self) -> None:
        """Send one form and wait for its order."""
        buyer = next(self.buyers)
        sent = time.monotonic()
        with closing(Connection((HOST, self.port), 0.0)) as connection:
            connection.exchange(buyer.post(self.path, buyer.form(self.sale)))
            page = json.loads(connection.body)["url"]
        poll = get(page, buyer, accept="application/json")
        with closing(Connection((HOST, self.polled.port), 0.0)) as connection:
            while time.monotonic() - sent < TIMEOUT:
                connection.exchange(poll)
                self.polls.append(json.loads(connection.body)["status"])
                if self.polls[-1] == "won":
                    self.waits.append(time.monotonic() - sent)
                    return
                time.sleep(POLL_SECONDS)
        raise TimeoutError(f"no order for {page}")


def measure(
    web: WebServer, sale: Sale, path: str, buyers: Sequence[Buyer], seconds: float
) -> tuple[Figures, Figures]:
    """Return the figures of the accepted reservations, and of the orders and their polls.

    Both are those of the time under load. It ends early if every buyer has sent the form.
    """
    polling = max(100, len(buyers) // 20)
    forms = requests(buyers[polling:], path, sale)
    all_sent = multiprocessing.Event()
    durable, lasted = 0, seconds

    def offered() -> Iterator[bytes]:
        yield from forms
        all_sent.set()

    with WebServer(1) as polled:
        pollers = Pollers(web.port, polled, path, sale, iter(buyers[:polling]))
        pollers.buy()  # when this order exists, the consumer has started
        warm = len(pollers.polls)
        threads = [threading.Thread(target=pollers.repeat) for _ in range(POLLERS)]

        def poll() -> None:
            nonlocal durable, lasted
            began = time.monotonic()
            for thread in threads:
                thread.start()
            all_sent.wait(seconds)
            durable = Order.objects.filter(sale=sale).count()
            lasted = time.monotonic() - began
            pollers.over.set()

        redis_cpu, polls_cpu = redis_cpu_us(), polled.cpu()
        heard, cpu = run_load(
            web, offered(), connections_open=CONNECTIONS, seconds=seconds, during=poll
        )
        for thread in threads:
            thread.join()
        polls_cpu = (polled.cpu() - polls_cpu) / max(1, len(pollers.polls) - warm)
    accepted = figures(heard, cpu, wanted="ok")
    acknowledged = accepted["answers"].get("ok", 0) + len(pollers.waits)
    found = [*breaches(sale, acknowledged), *pollers.failures]
    redis_cpu = redis_cpu_us() - redis_cpu  # until the last order is written
    return (
        accepted
        | {"redis_cpu_us": round(redis_cpu / max(1, len(heard.replies)), 2), "breaches": found},
        {
            "per_second": round((durable - 1) / lasted, 1),
            "load_seconds": round(lasted, 2),
            **percentiles(pollers.waits[1:]),
            "worker_cpu_ms": round(polls_cpu * 1000, 3),
            "answers": {"seen": len(pollers.waits) - 1},
            "breaches": [],
        },
    )
