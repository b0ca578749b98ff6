"""Sales that go on while processes of their stores are stopped or killed.

    report = carry("Galera", Topology(environ={"DATABASE_URL": ...}), steps=[kill(server)])

The shop runs on the stores of the topology, with the processes of docker-compose.yml. Each step
sends a signal to processes, and lasts until every sale has sold or, if it `stops` them, until
buyers have got answers. At the end, the orders are compared with the purchases that succeeded.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

from devservers import HOST, MariaDb, Server
from devservers.base import injected_faults
from devservers.faults.waiting import until
from devservers.process import is_stopped, process_state
from loadtest.kernel.actors import perform
from loadtest.kernel.topology import Stores, Topology
from loadtest.resilience.shop import Reply, Report, Shop, fetch, load, statuses

BUYERS, PAUSE = 3, 0.03
"""Buyers of a sale, each of which buys again after this many seconds."""
EACH = 40
"""Purchases of each sale before the first step and after each one, or answers."""
TIMEOUT = 30.0
SUCCEEDED = (201, 202)


def kill(*servers: Server, stops: Sequence[int] = ()) -> Report:
    """Return the step that kills servers; `stops` are the numbers of the sales that it stops."""
    return step(signal.SIGKILL, [one.pid for one in servers], stops)


def step(number: int, pids: Sequence[int], stops: Sequence[int] = ()) -> Report:
    """Return the step that sends a signal to processes."""
    injected_faults[f"{signal.Signals(number).name} in mid-sale"] += 1
    return {"signal": int(number), "pids": [*pids], "stops": [*stops]}


def execute(server: MariaDb, statement: str) -> Report:
    """Return the step that executes a statement as an operator."""
    return {"signal": 0, "pids": [], "stops": [], "sql": [server.port, statement]}


def carry(name: str, topology: Topology, *, steps: Sequence[Report], **asked: Any) -> Report:
    """Run the sales and return the report, after a line for each step.

    `asked` may have `backend`, the lock, and `queued`, the slugs of queued sales; without them
    there is one direct sale under the lock in Redis.
    """
    events = perform(__name__, {"steps": [*steps], **asked}, topology)
    report: Report = next(event["report"] for event in events if event["event"] == "report")
    show = "{sale}: {gap:.1f} s without purchases, answers {answers} in up to {slowest:.1f} s"
    for number, sales in enumerate(report["steps"], 1):
        for sale in sales:
            sys.stdout.write(f"\n{name}, step {number}, {show.format(**sale)}")
    sys.stdout.write("\n{0}: {acknowledged} purchases, {lost} lost\n".format(name, **report))
    return report


class Crowd:
    """The buyers of one sale, and what they were told."""

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

    def sold(self, since: float) -> list[float]:
        """Return when each purchase that began after `since` was answered."""
        done = self.answered(since)
        return sorted(one.ended for one in done if one.status in SUCCEEDED)

    def answered(self, since: float) -> list[Reply]:
        """Return the answers to purchases that began after `since`."""
        return [one for one in self.replies if one.began > since]

    def after(self, since: float, ended: float) -> Report:
        """Return what happened from `since` on."""
        ends = [since, *self.sold(since), ended]
        replies = self.answered(since)
        return {
            "sale": self.sale.slug,
            "gap": max(two - one for one, two in pairwise(ends)),
            "slowest": max((one.seconds for one in replies), default=0.0),
            "answers": statuses(replies),
        }

    def lost(self) -> int:
        """Return the number of acknowledged purchases without an order."""
        from shop.models import Order

        keys = Order.objects.filter(sale=self.sale).values_list("key", flat=True)
        return len(self.acknowledged - {*keys})


def main(asked: Report, _stores: Stores) -> Report:
    """Run the experiment in this process, whose environment names the stores."""
    from django.db import connections

    from locking import policy
    from shop.administration.audit import audit_sale

    with Shop(stock=1_000_000) as shop:
        policy.switch(backend=asked.get("backend", "redis"), reason="high availability")
        queued = [
            shop.open_sale(slug, 100_000, fulfilment="queued") for slug in asked.get("queued", ())
        ]
        crowds = [Crowd(shop, sale) for sale in queued or [shop.sale]]
        with ExitStack() as stack:
            for crowd in crowds:
                crowd.replies = stack.enter_context(load(crowd.buy, BUYERS, pause=PAUSE))
            _wait(crowds, time.monotonic(), ())
            steps = [_take(one, crowds) for one in asked["steps"]]
        connections.close_all()  # those of this process broke too
        if queued:
            _settle(crowds)
        return {
            "steps": steps,
            "acknowledged": sum(len(crowd.acknowledged) for crowd in crowds),
            "lost": sum(crowd.lost() for crowd in crowds),
            "breaches": [b for crowd in crowds for b in audit_sale(sale=crowd.sale).breaches],
        }


def _take(asked: Report, crowds: Sequence[Crowd]) -> list[Report]:
    for pid in asked["pids"]:
        os.kill(pid, asked["signal"])
        if asked["signal"] == signal.SIGKILL:
            until(lambda pid=pid: process_state(pid) in ("", "Z"), "the end of the process")
        else:
            until(lambda pid=pid: is_stopped(pid), "the stop of the process")
    began = time.monotonic()
    if "sql" in asked:
        port, statement = asked["sql"]
        with closing(import_module("MySQLdb").connect(HOST, "root", "", "", port)) as connection:
            connection.cursor().execute(statement)
    _wait(crowds, began, asked["stops"])
    ended = time.monotonic()
    return [crowd.after(began, ended) for crowd in crowds]


def _wait(crowds: Sequence[Crowd], since: float, stops: Sequence[int]) -> None:
    for number, crowd in enumerate(crowds):
        count = partial(crowd.answered if number in stops else crowd.sold, since)
        until(lambda count=count: len(count()) > EACH, "purchases, or answers", TIMEOUT)


def _settle(crowds: Sequence[Crowd]) -> None:
    """Wait until each acknowledged purchase has an order, or none is left to be written."""
    from shop.reservations import store

    for crowd in crowds:
        until(lambda sale=crowd.sale: store.backlog(sale=sale) == 0, "the orders", TIMEOUT)
