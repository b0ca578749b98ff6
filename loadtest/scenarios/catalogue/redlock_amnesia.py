"""F4: a RedLock master restarts empty and votes twice; then with a delayed restart."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from devservers import Redis
from loadtest.faults.injectors import KillServers
from loadtest.faults.waiting import until
from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import REDLOCK, Stage
from locking import LockUnavailable, locks

TTL, LONG = 2.0, 20.0


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """Three of five grant, one of these loses its memory, and the other two come back."""
    masters = [Redis() for _ in range(5)]
    stage.five(*masters)
    options = {"RESTART_DELAY": TTL} if is_repaired else {}
    urls = [master.url for master in masters]
    ttl = TTL if is_repaired else LONG
    stage.lock("redlock", REDLOCK, urls, TTL=ttl, OPTIONS=options)
    stage.guard("redlock", "naive")
    if is_repaired:
        until(_votes, "the masters coming of age")
    down = KillServers(masters[3:], "masters 4, 5", "down")
    stage.strike(down)

    def forget() -> None:
        amnesia = KillServers(masters[2:3], "master 3", "down")
        stage.strike(amnesia)
        stage.heal(amnesia)
        stage.heal(down)
        stage.gone("buyer A")

    timeout = 0.5 if is_repaired else 5.0
    facts = behind_anothers_back(stage, meanwhile=forget, timeout=timeout, renew=False)
    return facts | {"ttl": ttl}


def _votes() -> bool:
    try:
        locks["redlock"].probe()
    except LockUnavailable:
        return False
    return True


SCENARIO = Scenario(
    name="redlock-amnesia",
    row="F4",
    title=_("A RedLock master restarts and has forgotten its vote"),
    broken="redlock + naive",
    repaired="redlock + naive, delayed restart",
    sentences=(
        _(
            "Three of five masters had voted for buyer A when one of them restarted empty; its "
            "second vote and two fresh masters gave buyer B a majority %(b_second_waited).2f s "
            "after it asked."
        ),
        _(
            "Two majorities were in force for %(b_overlap_seconds).2f s, and %(b_sold)d were sold "
            "of %(b_stock)d."
        ),
        _(
            "With a restart delayed by the lease of %(r_ttl).0f s nobody asked a young master: "
            "buyer B was turned away after %(r_second_waited).1f s, and %(r_sold)d was sold of "
            "%(r_stock)d."
        ),
    ),
    repair=_("RESTART_DELAY: a master votes again once every lease it may have forgotten is over."),
    immune=_("redlock on masters that write every command to disk; zookeeper, database."),
    play=play,
)
