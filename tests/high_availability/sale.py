"""Sales that go on while their stores fail.

    report = carry("Galera", Topology(environ={"DATABASE_URL": cluster.url}), Step(server.kill))

The shop runs in a process of its own, on the stores of the topology, with the processes of
docker-compose.yml. Before the first step and after each one, every sale sells EACH units or, where
a step `stops` it, answers as many buyers. At the end, the orders are compared with the purchases
that were acknowledged.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from devservers.faults.waiting import until
from devservers.faults.worker import emit
from loadtest.kernel.session import Experiment
from loadtest.kernel.topology import Stores, Topology
from loadtest.resilience.shop import Reply, Report, Shop, fetch, load, statuses

BUYERS, PAUSE = 3, 0.03
"""Buyers of a sale, each of which buys again after this many seconds."""
EACH = 40
TIMEOUT = 30.0
SUCCEEDED = (201, 202)


class Step(NamedTuple):
    """A fault in mid-sale, or a repair."""

    act: Callable[[], object]
    stops: Sequence[int] = ()
    """The numbers of the sales that sell nothing from now on."""


def carry(name: str, topology: Topology, *steps: Step, **asked: Any) -> Report:
    """Run the sales, whose accounts must agree; return the report, and print each step's part.

    `asked` may have `backend`, the lock; `queued`, the number of queued sales, instead of one
    direct sale; and `is_idle`, if no order of these is written before the last step has ended.
    """
    asked["stops"] = [one.stops for one in steps]
    report: Report = {}
    with Experiment(__name__, asked, topology) as experiment:
        for event in experiment.events():
            if event["event"] == "step":
                steps[event["number"]].act()
                experiment.write_line("")
            report = event.get("report", report)
    show = "{sale}: {gap:.1f} s without purchases, answers {answers} in up to {slowest:.1f} s"
    for number, sales in enumerate(report["steps"], 1):
        for sale in sales:
            sys.stdout.write(f"\n{name}, step {number}, {show.format(**sale)}")
    sys.stdout.write("\n{0}: {acknowledged} purchases, {lost} lost\n".format(name, **report))
    assert report["breaches"] == []
    return report


class Crowd:
    """The buyers of one sale, and the replies to them."""

    def __init__(self, shop: Shop, sale: Any) -> None:
        self.shop, self.sale = shop, sale
        self.replies: list[Reply] = []
        self.acknowledged: set[str] = set()

    def buy(self) -> int:
        from shop.models import digest

        _, form = self.shop.form(self.sale)
        status, _ = fetch(self.shop.web.port, form)
        if status in SUCCEEDED:
            key = form.rpartition(b"idempotency_key=")[2].partition(b"&")[0].decode()
            self.acknowledged.add(digest(key))
        return status

    def answered(self, since: float) -> list[Reply]:
        """Return the replies to purchases that began after `since`."""
        return [one for one in self.replies if one.began > since]

    def sold(self, since: float) -> list[float]:
        """Return when those of them that succeeded ended."""
        return sorted(one.ended for one in self.answered(since) if one.status in SUCCEEDED)

    def lost(self) -> int:
        """Return the number of acknowledged purchases without an order."""
        from shop.models import Order

        keys = Order.objects.filter(sale=self.sale).values_list("key", flat=True)
        return len(self.acknowledged - {*keys})

    def is_settled(self) -> bool:
        """Return True if no reservation waits for its order."""
        from shop.reservations import store

        self.sale.refresh_from_db(fields=["generation"])  # a failover may have changed it
        return store.backlog(sale=self.sale) == 0


def main(asked: Report, _stores: Stores) -> Report:
    """Run the sales in this process, whose environment names the stores."""
    from django.db import connections

    from locking import policy
    from shop.administration.audit import audit_sale

    with Shop(stock=100_000) as shop:
        policy.switch(backend=asked.get("backend", "redis"), reason="high availability")
        queued = [
            shop.open_sale(f"queued-{number}", 100_000, fulfilment="queued")
            for number in range(asked.get("queued", 0))
        ]
        crowds = [Crowd(shop, sale) for sale in queued or [shop.sale]]
        if asked.get("is_idle"):
            shop.consumer.pause()
        with ExitStack() as stack:
            for crowd in crowds:
                crowd.replies = stack.enter_context(load(crowd.buy, BUYERS, pause=PAUSE))
            _wait(crowds, time.monotonic(), ())
            steps = [_step(crowds, *one) for one in enumerate(asked["stops"])]
        shop.consumer.resume()
        connections.close_all()  # those of this process broke too
        for crowd in crowds:
            if crowd.sale in queued:
                until(crowd.is_settled, "the orders", TIMEOUT)
        return {
            "steps": steps,
            "acknowledged": sum(len(crowd.acknowledged) for crowd in crowds),
            "lost": sum(crowd.lost() for crowd in crowds),
            "breaches": [b for crowd in crowds for b in audit_sale(sale=crowd.sale).breaches],
        }


def _step(crowds: Sequence[Crowd], number: int, stops: Sequence[int]) -> list[Report]:
    began = time.monotonic()
    emit("step", number=number)
    sys.stdin.readline()
    done = time.monotonic()
    _wait(crowds, done, stops)
    ended, reports = time.monotonic(), []
    for crowd in crowds:
        times, replies = [began, *crowd.sold(began), ended], crowd.answered(done)
        reports.append(
            {
                "sale": crowd.sale.slug,
                "tag": str(crowd.sale.pk),
                "gap": max(two - one for one, two in pairwise(times)),
                "slowest": max(one.seconds for one in replies),
                "answers": statuses(replies),
            }
        )
    return reports


def _wait(crowds: Sequence[Crowd], since: float, stops: Sequence[int]) -> None:
    for number, crowd in enumerate(crowds):
        count = partial(crowd.answered if number in stops else crowd.sold, since)
        until(lambda count=count: len(count()) > EACH, "purchases, or answers", TIMEOUT)
