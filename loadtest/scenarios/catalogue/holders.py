"""Holders that are killed, stalled or too slow, and one that releases its lock too early."""

from functools import partial
from typing import Any

from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import ANSWERED, WORK_SECONDS, buy_while_holder_stalls, crash_and_wait
from loadtest.scenarios.testbed import TTL, Testbed

LONG_TTL = 5.0
"""Seconds of a lease longer than any work: the usual choice without a watchdog."""
WORKS = 0.8
"""Seconds after which a holder is killed: the watchdog has extended its lease twice."""
MAX_OUTAGE = 3.0
"""Seconds without a sale that count as a failure."""
SLOW_WORK_TTL = 1.5


@scenario(
    fault="killed",
    row="F1",
    broken=gettext_noop("redis, long lease"),
    repaired=gettext_noop("redis, short lease and watchdog"),
)
def holder_killed(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Use a long lease; then a short one, which a watchdog extends."""
    testbed.add_lock()
    ttl, crash = TTL if is_repaired else LONG_TTL, partial(crash_and_wait, testbed, "redis")
    facts = crash(ttl=ttl, timeout=10, works=WORKS, renew=is_repaired)
    return facts | {"works": WORKS, "broke": facts["waited"] > MAX_OUTAGE}


@scenario(fault="paused", row="F2", broken="redis + naive", repaired="redis + fenced")
def holder_paused(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Stop a holder with SIGSTOP for twice its lease, between its read and its write."""
    testbed.use("fenced" if is_repaired else "naive")
    stop = partial(buy_while_holder_stalls, testbed, fault="stop")
    return stop(at_least=2 * TTL, timeout=4 * TTL) | {"ttl": TTL}


@scenario(fault="paused", row="F2", broken="redis + naive", repaired="redis + fenced")
def gil_held(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Hold the GIL in one thread of the holder until another process has bought."""
    testbed.use("fenced" if is_repaired else "naive")
    return buy_while_holder_stalls(testbed, fault="gil", timeout=4 * TTL) | {"ttl": TTL}


@scenario(
    fault="late",
    row="F6",
    broken=gettext_noop("redis + naive, not renewed"),
    repaired=gettext_noop("redis + naive, watchdog"),
)
def work_outlasts_lease(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Let the holder work until another buyer has waited twice its lease, or has bought."""
    testbed.use("naive", TTL=SLOW_WORK_TTL)
    longest = 2 * SLOW_WORK_TTL
    facts = buy_while_holder_stalls(testbed, timeout=10.0, at_most=longest, renew=is_repaired)
    return facts | {"ttl": SLOW_WORK_TTL}


@scenario(
    fault="commit",
    row="F8",
    broken=gettext_noop("redis + naive, released early"),
    repaired=gettext_noop("redis + naive, released after the commit"),
)
def release_before_commit(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Run the same purchase with the release before the commit, then after it."""
    testbed.use("naive", TTL=30.0)
    longest = WORK_SECONDS if is_repaired else ANSWERED
    return buy_while_holder_stalls(testbed, at_most=longest, early=not is_repaired)
