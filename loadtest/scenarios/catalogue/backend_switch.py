"""The backend is switched by force while a buyer holds the lock."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import buy_while_holder_stalls
from loadtest.scenarios.testbed import DATABASE, Testbed
from locking import policy


@scenario(
    name="switch-under-load",
    fault="switch",
    row="F9",
    title=_("The lock is switched while a sale runs"),
    broken=gettext_noop("redis to database + naive, by force"),
    repaired=gettext_noop("redis to database + conditional, by force"),
    story=_(
        "Buyer A held the lock in Redis when staff switched by force. The database granted its "
        "lock to buyer B at once, and B bought the unit.\n"
        "For %(b_overlap_seconds).1f s both thought they held the lock, and A's late write was "
        "accepted: %(b_sold)d sold of %(b_stock)d.\n"
        "Under conditional, the row rejected A's write: its token was from before the switch. A "
        "tried again under the new lock and was told “sold out”: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_(
        "The epoch in front of every token: conditional and fenced writes reject a holder of an "
        "earlier epoch. Without force, a switch gives a lock no new holder until its old holder "
        "has finished."
    ),
    immune=_("None: the switch itself must be safe."),
)
def _switch(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Switch from redis to database while one buyer holds the lock and before another one buys."""
    testbed.add_lock("database", DATABASE, LOCATION="default", TTL=30.0)
    testbed.use("conditional" if is_repaired else "naive", TTL=30.0)

    def force() -> None:
        testbed.note("mark", lane="staff", what="force")
        policy.switch(backend="database", reason="scenario", force=True)

    return buy_while_holder_stalls(testbed, meanwhile=force)
