"""The backend is switched while a sale runs, by force and with a drain."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from devservers.faults.waiting import until
from loadtest.load.shop_worker import ShopWorker
from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import sold
from loadtest.scenarios.testbed import DATABASE, Testbed
from locking import policy
from locking.models import LockPolicyChange
from shop.administration.audit import audit_sale
from shop.models import Order

STOCK, BUYERS, RETRY_SECONDS = 4, 5, 20.0
WORK_SECONDS = 0.5
"""Seconds for which the old holder still works while the switch drains."""


@scenario(
    name="switch-under-load",
    fault="switch",
    row="F9",
    title=_("The lock is switched while a sale runs"),
    broken=gettext_noop("redis to database + naive, by force"),
    repaired=gettext_noop("redis to database + naive, drained"),
    story=_(
        "Buyer A held the old lock when the switch was forced; %(b_behind)d orders were placed "
        "under the new lock before A wrote.\n"
        "For %(b_together).2f s two backends guarded one row, and %(b_sold)d were sold of "
        "%(b_stock)d.\n"
        "With the drain, %(r_behind)d orders were placed before A wrote, and %(r_sold)d were sold "
        "of %(r_stock)d."
    ),
    repair=_(
        "A switch drains: a lock gets no new holder until its old holder has finished. If the "
        "switch is forced, the epoch in front of every token lets fenced and conditional writes "
        "reject the old holder."
    ),
    immune=_("None: the switch itself must be safe."),
)
def _switch(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Switch redis to database while one buyer holds the lock and two processes wait for it."""
    testbed.add_lock("database", DATABASE, LOCATION="default", TTL=30.0)
    testbed.use("naive", TTL=30.0)
    sale = testbed.open_sale(STOCK)
    first = testbed.worker("buyer A")
    others = [testbed.worker(name, timeout=0.5) for name in ("buyer B", "buyer C")]
    customers = [[testbed.create_customer() for _ in range(BUYERS)] for _ in others]
    orders = Order.objects.filter(sale=sale)
    first.start("buy", sale=sale.pk, user=testbed.create_customer(), fault="wait")
    first.wait_for_fault()

    def buy(process: ShopWorker, customers: Sequence[int]) -> None:
        for customer in customers:
            process.call("buy", sale=sale.pk, user=customer, patience=RETRY_SECONDS)

    with ThreadPoolExecutor(len(others)) as pool:
        served = pool.map(buy, others, customers)
        testbed.note("mark", lane="staff", what="drain" if is_repaired else "force")
        switched = time.monotonic()
        if is_repaired:
            policy.switch(backend="database", reason="scenario", wait=False)
            time.sleep(WORK_SECONDS)
        else:
            policy.switch(backend="database", reason="scenario", force=True)
            # Only buyer A holds the old lock, and it is still at work.
            until(lambda: orders.count() == STOCK, "the others' orders")
        before = orders.count()
        first.end_fault()
        first.receive()
        together = time.monotonic() - switched
        if is_repaired:
            policy.finish_switch()
        testbed.note("mark", lane="staff", what="database")
        list(served)
    change = LockPolicyChange.objects.latest("pk")
    return {
        **sold(sale),
        "behind": before,
        "together": 0.0 if is_repaired else round(together, 2),
        "drained": round(change.drained_ms / 1000, 2),
        "broke": not audit_sale(sale=sale).ok,
    }
