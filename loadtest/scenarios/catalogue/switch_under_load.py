"""F9: the backend is switched while a sale runs, by force and with a drain."""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.faults.waiting import until
from loadtest.load.actor import Actor
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import DATABASE, Stage
from locking import policy
from locking.models import LockPolicyChange
from shop.administration.audit import audit_sale
from shop.models import Order

STOCK, CROWD, PATIENCE = 4, 5, 20.0
WORK = 0.5
"""Seconds that the old holder still works while the switch drains."""


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """A holder is at work and two buyers stand behind it when staff switch redis to database."""
    stage.redis_lock(TTL=30.0)
    stage.lock("database", DATABASE, "default", TTL=30.0)
    stage.guard("redis", "naive")
    sale = stage.sale(STOCK)
    first = stage.actor("buyer A")
    crowd = [stage.actor(name, timeout=0.5) for name in ("buyer B", "buyer C")]
    waves = [[[stage.customer() for _ in range(CROWD)] for _ in crowd] for _ in range(2)]
    first.start("buy", sale=sale.pk, user=stage.customer(), fault="wait")
    first.struck()

    def buy(actor: Actor, customers: Iterable[int]) -> None:
        for customer in customers:
            told = actor.call("buy", sale=sale.pk, user=customer, patience=PATIENCE)
            if told.get("error") == "sold_out":
                return

    with ThreadPoolExecutor(len(crowd)) as pool:
        bought = [pool.submit(buy, *both) for both in zip(crowd, waves[0], strict=True)]
        stage.mark("staff", "drain" if is_repaired else "force")
        if is_repaired:
            policy.begin_switch(backend="database", reason="scenario")
            stage.until_passed(time.monotonic(), WORK)
        else:
            policy.switch(backend="database", reason="scenario", force=True)
            switched = time.monotonic()
            # Nobody holds the old lock but one, who is still at work.
            until(lambda: Order.objects.filter(sale=sale).count() == STOCK, "the crowd buying")
        before = Order.objects.filter(sale=sale).count()
        first.on()
        first.answer()
        together = 0.0 if is_repaired else time.monotonic() - switched
        if is_repaired:
            policy.finish_switch()
        stage.mark("staff", "database")
        for done in bought:
            done.result()
        for done in [pool.submit(buy, *both) for both in zip(crowd, waves[1], strict=True)]:
            done.result()
    audit = audit_sale(sale=sale)
    change = LockPolicyChange.objects.latest("pk")
    return {
        "stock": STOCK,
        "sold": audit.held,
        "oversold": audit.oversold,
        "behind": before,
        "together": round(together, 2),
        "drained": round(change.drained_ms / 1000, 2),
        "broke": not audit.ok,
    }


SCENARIO = Scenario(
    name="switch-under-load",
    row="F9",
    title=_("The lock is switched while a sale runs"),
    broken="redis to database + naive, by force",
    repaired="redis to database + naive, drained",
    sentences=(
        _(
            "Buyer A held the old lock when the switch was forced; %(b_behind)d orders were placed "
            "under the new lock before A wrote."
        ),
        _(
            "For %(b_together).2f s two backends guarded one row, and %(b_sold)d were sold "
            "of %(b_stock)d."
        ),
        _(
            "The drain waited %(r_drained).1f s for A, nobody bought behind its back "
            "(%(r_behind)d orders), and %(r_sold)d were sold of %(r_stock)d."
        ),
    ),
    repair=_(
        "A switch drains: no new holder starts until the old ones are gone. Where it is forced, "
        "the epoch in front of every token lets fenced and conditional refuse the old holder."
    ),
    immune=_("None by itself: it is the hand-over that must be safe."),
    play=play,
)
