"""The backend is switched while a buyer holds the lock: by force, and with a drain."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections
from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import WORK_SECONDS, buy_while_holder_stalls
from loadtest.scenarios.testbed import DATABASE, Testbed
from locking import policy

FORCED = gettext_noop("redis to database + naive, by force")


@scenario(
    fault="switch",
    row="F9",
    broken=FORCED,
    repaired=gettext_noop("redis to database + conditional, by force"),
)
def forced_switch(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Switch from redis to database while one buyer holds the lock and before another one buys."""
    testbed.add_lock("database", DATABASE, LOCATION="default", TTL=30.0)
    testbed.use("conditional" if is_repaired else "naive", TTL=30.0)

    def force() -> None:
        testbed.note("mark", lane="staff", what="force")
        policy.switch(backend="database", reason="scenario", force=True)

    return buy_while_holder_stalls(testbed, meanwhile=force)


@scenario(
    fault="switch",
    row="F9",
    broken=FORCED,
    repaired=gettext_noop("redis to database + naive, drained"),
)
def switch_under_load(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Switch as above, by force; then with a drain."""
    if not is_repaired:
        return forced_switch(testbed, False)
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
