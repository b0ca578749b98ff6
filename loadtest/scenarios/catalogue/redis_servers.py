"""Redis servers that fail: a lost master, a master that restarts empty, clocks that jump."""

from functools import partial
from typing import Any

from django.utils.translation import gettext_noop

from devservers import Redis
from devservers.faults.clock import Clock
from devservers.faults.injectors import ClockJump, CutReplication, Disturb
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until
from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import WORK_SECONDS, buy_while_holder_stalls
from loadtest.scenarios.testbed import Testbed
from locking import LockUnavailable, locks

LONG_TTL = 30.0
RESTART_TTL = 2.0
"""Seconds of a lease that a restarted master waits out."""
JUMP_SECONDS = 31.0


@scenario(
    fault="failover",
    row="F3",
    broken=gettext_noop("redis + naive, one replica"),
    repaired=gettext_noop("redlock + naive, five masters"),
)
def failover_before_replication(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Kill the master of a held lock: the only one, whose replica takes over; then one of five."""
    return _one_of_five(testbed) if is_repaired else _only_master(testbed)


def _only_master(testbed: Testbed) -> dict[str, Any]:
    master = testbed.start(Redis())
    replica = testbed.start(Redis(replica_of=master))
    address = testbed.start(Proxy(master.port))
    testbed.use("naive", LOCATION=f"redis://{address.url}/0", TTL=LONG_TTL)
    cut = CutReplication(replica, lane="replica")
    testbed.inject(cut)

    def fail_over() -> None:
        testbed.inject(Disturb([master], "kill", "master"))
        testbed.note("gone", lane="buyer A")
        cut.promote()
        testbed.note("mark", lane="replica", what="promoted")
        address.redirect(replica.port)

    return buy_while_holder_stalls(testbed, meanwhile=fail_over)


def _one_of_five(testbed: Testbed) -> dict[str, Any]:
    masters = testbed.masters()
    testbed.use_redlock(masters, TTL=LONG_TTL)
    kill = Disturb(masters[:1], "kill", "master 1 of 5")
    lose_one = partial(testbed.inject, kill)
    return buy_while_holder_stalls(testbed, meanwhile=lose_one, at_most=WORK_SECONDS)


@scenario(
    fault="failover",
    row="F4",
    broken="redlock + naive",
    repaired=gettext_noop("redlock + naive, delayed restart"),
)
def redlock_amnesia(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Let three of five masters grant, restart one of them empty, and start the other two."""
    masters = testbed.masters()
    ttl, options = (RESTART_TTL, {"RESTART_DELAY": RESTART_TTL}) if is_repaired else (20.0, {})
    testbed.use_redlock(masters, TTL=ttl, OPTIONS=options)
    if is_repaired:
        until(_has_majority, "the end of the masters' restart delay")
    down = Disturb(masters[3:], "kill", "masters 4, 5", "down")
    testbed.inject(down)

    def restart_empty() -> None:
        amnesia = Disturb(masters[2:3], "kill", "master 3", "down")
        testbed.inject(amnesia)
        testbed.recover(amnesia)
        testbed.recover(down)
        testbed.note("gone", "masters", lane="buyer A")

    timeout, works = (0.5, 1.0) if is_repaired else (5.0, 0.0)
    stall = partial(buy_while_holder_stalls, testbed, meanwhile=restart_empty, renew=False)
    return stall(timeout=timeout, at_least=works) | {"ttl": ttl}


def _has_majority() -> bool:
    try:
        locks["redlock"].probe()
    except LockUnavailable:
        return False
    return True


@scenario(fault="clock", row="F5", broken="redlock + naive", repaired="redlock + fenced")
def redlock_clock_jump(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Shift three of five clocks with a preloaded library; the machine's clock stays as it is."""
    clock = Clock(testbed.folder)
    masters = testbed.masters()
    for master in masters[:3]:
        clock.drive(master)
    testbed.use_redlock(masters, "fenced" if is_repaired else "naive", TTL=LONG_TTL)

    def jump() -> None:
        testbed.inject(ClockJump([clock], masters[:3], JUMP_SECONDS, lane="masters 1-3"))
        testbed.note("gone", "masters", lane="buyer A")

    facts = buy_while_holder_stalls(testbed, meanwhile=jump)
    return facts | {"ttl": LONG_TTL, "jump": JUMP_SECONDS}
