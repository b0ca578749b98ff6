"""F5: the clocks of three RedLock masters jump past the end of a lease that is held."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from devservers import Redis
from loadtest.faults.clock import Clock
from loadtest.faults.injectors import ClockJump
from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import REDLOCK, Stage

TTL, JUMP = 30.0, 31.0


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """Three of five clocks, by a library that is preloaded; never the machine's."""
    clock = Clock(stage.folder)
    masters = [Redis() for _ in range(5)]
    for master in masters[:3]:
        clock.drive(master)
    stage.five(*masters)
    stage.lock("redlock", REDLOCK, [master.url for master in masters], TTL=TTL)
    stage.guard("redlock", "fenced" if is_repaired else "naive")

    def jump() -> None:
        stage.strike(ClockJump([clock], masters[:3], JUMP, lane="masters 1-3"))
        stage.gone("buyer A")

    return behind_anothers_back(stage, meanwhile=jump) | {"ttl": TTL, "jump": JUMP}


SCENARIO = Scenario(
    name="redlock-clock-jump",
    row="F5",
    title=_("The clocks of three RedLock masters jump"),
    broken="redlock + naive",
    repaired="redlock + fenced",
    sentences=(
        _(
            "Three of five clocks jumped %(b_jump).0f s ahead, past buyer A's lease of "
            "%(b_ttl).0f s, and buyer B had a majority after %(b_second_waited).2f s."
        ),
        _(
            "Both leases were in force for %(b_overlap_seconds).2f s by the clocks of their "
            "holders, and %(b_sold)d were sold of %(b_stock)d."
        ),
        _(
            "With the fence, whose token the stock row mints itself, A's write was refused "
            "%(r_refused)d time and %(r_sold)d was sold of %(r_stock)d."
        ),
    ),
    repair=_(
        "Nothing in Redis: a lease measured by somebody else's clock is only as good as the clock. "
        "The stock row guards itself."
    ),
    immune=_("zookeeper (sessions run on monotonic clocks), mysql_session."),
    play=play,
)
