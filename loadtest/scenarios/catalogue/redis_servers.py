"""Redis servers that fail: a lost master, a master that restarts empty, clocks that jump."""

from functools import partial
from typing import Any

from django.utils.translation import gettext_lazy as _
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
    name="failover-before-replication",
    fault="failover",
    row="F3",
    title=_("The master dies before its replica has the lock"),
    broken=gettext_noop("redis + naive, one replica"),
    repaired=gettext_noop("redlock + naive, five masters"),
    story=_(
        "The master was killed before it had replicated buyer A's lock; the promoted replica "
        "granted the lock to buyer B within %(b_second_waited)s.\n"
        "For %(b_overlap_seconds).2f s both thought they held the lock, and both leases were "
        "still valid: %(b_sold)d sold of %(b_stock)d.\n"
        "With five masters, the loss of one changed nothing: buyer B waited "
        "%(r_second_waited)s, until A had written, and was told “sold out”: %(r_sold)d sold of "
        "%(r_stock)d."
    ),
    repair=_(
        "RedLock, which asks a majority of independent masters. With one master, the fence: tokens "
        "keep growing through a failover, so the stock row refuses the old holder's write."
    ),
    immune=_("RedLock, ZooKeeper, and the database lock if the database replicates synchronously."),
)
def _failover(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
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
    name="redlock-amnesia",
    fault="failover",
    row="F4",
    title=_("A RedLock master restarts and forgets its vote"),
    broken="redlock + naive",
    repaired=gettext_noop("redlock + naive, delayed restart"),
    story=_(
        "Three of five masters had voted for buyer A. One lost its data in a restart and voted "
        "again; with two more, buyer B had a majority after %(b_second_waited)s.\n"
        "For %(b_overlap_seconds).2f s both thought that a majority had granted them the lock: "
        "%(b_sold)d sold of %(b_stock)d.\n"
        "With RESTART_DELAY set to the lease of %(r_ttl).0f s, the restarted masters did not "
        "vote: buyer B was refused after %(r_second_waited)s, and %(r_sold)d was sold of "
        "%(r_stock)d."
    ),
    repair=_("RESTART_DELAY: a master votes again when all leases it may have forgotten are over."),
    immune=_(
        "RedLock, if its masters write every command to disk; ZooKeeper and the database lock."
    ),
)
def _amnesia(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
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


@scenario(
    name="redlock-clock-jump",
    fault="clock",
    row="F5",
    title=_("The clocks of three RedLock masters jump"),
    broken="redlock + naive",
    repaired="redlock + fenced",
    story=_(
        "Three of five clocks jumped %(b_jump).0f s ahead, past buyer A's lease of %(b_ttl).0f "
        "s, and buyer B had a majority after %(b_second_waited)s.\n"
        "For %(b_overlap_seconds).2f s both leases were valid by the clocks of their holders: "
        "%(b_sold)d sold of %(b_stock)d.\n"
        "With the fence, whose token the stock row issues itself, A's write was refused: "
        "%(r_sold)d sold of %(r_stock)d."
    ),
    repair=_(
        "Nothing in Redis: a lease is only as good as the clock that measures it. The stock row "
        "itself has to refuse late writes."
    ),
    immune=_(
        "ZooKeeper, whose sessions run on monotonic clocks; MySQL session and PostgreSQL session, "
        "which have no lease."
    ),
)
def _clock_jump(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
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
