"""The backend is switched while a buyer holds the lock: by force, and with a drain."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import WORK_SECONDS, buy_while_holder_stalls
from loadtest.scenarios.testbed import DATABASE, Testbed
from locking import policy

FORCED = gettext_noop("redis to database + naive, by force")
IMMUNE = _("None: the switch itself must be safe.")


@scenario(
    name="forced-switch",
    fault="switch",
    row="F9",
    title=_("The lock is switched by force"),
    broken=FORCED,
    repaired=gettext_noop("redis to database + conditional, by force"),
    story=_(
        "Buyer A held the lock in Redis when staff switched by force. The database granted its "
        "lock to buyer B at once, and B bought the unit.\n"
        "For %(b_overlap_seconds).1f s both thought they held the lock, and A's late write was "
        "accepted: %(b_sold)d sold of %(b_stock)d.\n"
        "With conditional writes, the row refused A's write, whose token was from before the "
        "switch. A tried again under the new lock and was told “sold out”: %(r_sold)d sold of "
        "%(r_stock)d."
    ),
    repair=_(
        "The epoch in front of every token: conditional and fenced writes refuse a holder of an "
        "earlier epoch."
    ),
    immune=IMMUNE,
)
def _force(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Switch from redis to database while one buyer holds the lock and before another one buys."""
    testbed.add_lock("database", DATABASE, LOCATION="default", TTL=30.0)
    testbed.use("conditional" if is_repaired else "naive", TTL=30.0)

    def force() -> None:
        testbed.note("mark", lane="staff", what="force")
        policy.switch(backend="database", reason="scenario", force=True)

    return buy_while_holder_stalls(testbed, meanwhile=force)


@scenario(
    name="switch-under-load",
    fault="switch",
    row="F9",
    title=_("The lock is switched while a sale is open"),
    broken=FORCED,
    repaired=gettext_noop("redis to database + naive, drained"),
    story=_(
        "Staff switched by force while buyer A held the old lock, and B got the new one: "
        "%(b_sold)d sold of %(b_stock)d.\n"
        "Without force, the switch waited until A had written and released the old lock.\n"
        "B then got the new one, read 0 and was told “sold out”: %(r_sold)d sold of %(r_stock)d, "
        "even with naive writes."
    ),
    repair=_("A drain: a lock gets no new holder until its old holder has finished."),
    immune=IMMUNE,
)
def _switch(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Switch as above, by force; then with a drain."""
    if not is_repaired:
        return _force(testbed, False)
    testbed.add_lock("database", DATABASE, LOCATION="default", TTL=30.0)
    testbed.use("naive", TTL=30.0)

    def finish() -> None:
        try:
            policy.finish_switch()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as staff:

        def drain() -> None:
            testbed.note("mark", lane="staff", what="drain")
            policy.switch(backend="database", reason="scenario", wait=False)
            staff.submit(finish)

        return buy_while_holder_stalls(testbed, meanwhile=drain, at_most=WORK_SECONDS)
