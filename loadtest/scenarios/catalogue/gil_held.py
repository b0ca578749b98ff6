"""F2: a holder's GIL is held longer than its lease, so that its own watchdog cannot renew."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import TTL, Stage


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """One thread of the holder keeps the GIL until another has bought."""
    stage.redis_lock()
    stage.guard("redis", "fenced" if is_repaired else "naive")
    return behind_anothers_back(stage, fault="gil", timeout=4 * TTL) | {"ttl": TTL}


SCENARIO = Scenario(
    name="gil-held",
    row="F2",
    title=_("The holder's GIL is held, and its watchdog starves"),
    broken="redis + naive",
    repaired="redis + fenced",
    sentences=(
        _(
            "A C call in buyer A kept the GIL past the lease of %(b_ttl).1f s, so its watchdog "
            "renewed nothing and buyer B was granted the lock after %(b_second_waited).1f s."
        ),
        _(
            "Both believed in it for %(b_overlap_seconds).1f s, and A's late write was accepted: "
            "%(b_sold)d sold of %(b_stock)d."
        ),
        _(
            "With the fence the same A was refused %(r_refused)d time, and %(r_sold)d was sold of "
            "%(r_stock)d."
        ),
    ),
    repair=_("The fence, as for a pause: a watchdog in the same process sleeps with it."),
    immune=_("mysql_session, as long as the holder's connection lives."),
    play=play,
)
