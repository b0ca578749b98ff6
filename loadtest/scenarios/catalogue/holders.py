"""Holders that are killed, stalled or too slow, and one that releases its lock too early."""

from functools import partial
from typing import Any

from django.utils.translation import gettext_lazy as _
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
    name="holder-killed",
    fault="killed",
    row="F1",
    title=_("The holder is killed"),
    broken=gettext_noop("redis, long lease"),
    repaired=gettext_noop("redis, short lease and watchdog"),
    story=_(
        "Buyer A had a lease of %(b_ttl).0f s, longer than any work, and was killed after "
        "%(b_works).1f s.\n"
        "Buyer B had to wait %(b_waited)s for the end of the lease.\n"
        "With a lease of %(r_ttl).0f s, which the watchdog extended while A lived, B waited "
        "%(r_waited)s."
    ),
    repair=_("A short lease that a watchdog extends; or a session, which ends with its process."),
    immune=_(
        "MySQL session and PostgreSQL session: the server frees the lock the moment the "
        "connection breaks. ZooKeeper: as soon as the dead process's session ends."
    ),
    requires_overlap=False,
)
def _killed(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Use a long lease; then a short one, which a watchdog extends."""
    testbed.add_lock()
    ttl, crash = TTL if is_repaired else LONG_TTL, partial(crash_and_wait, testbed, "redis")
    facts = crash(ttl=ttl, timeout=10, works=WORKS, renew=is_repaired)
    return facts | {"works": WORKS, "broke": facts["waited"] > MAX_OUTAGE}


@scenario(
    name="holder-paused",
    fault="paused",
    row="F2",
    title=_("The holder is paused past its lease"),
    broken="redis + naive",
    repaired="redis + fenced",
    story=_(
        "Buyer A had read the stock when SIGSTOP stopped it for %(b_stalled).1f s, longer than "
        "its lease of %(b_ttl).1f s; buyer B was granted the lock after %(b_second_waited)s.\n"
        "For %(b_overlap_seconds).1f s both thought they held the lock, and A's late write was "
        "accepted: %(b_sold)d sold of %(b_stock)d.\n"
        "With the fence, both again thought so for %(r_overlap_seconds).1f s, but A's late write "
        "was refused: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_(
        "The read claims the stock row with its token, unless the row carries a newer one. The "
        "write requires that the row still carries this token. A longer lease does not help: any "
        "lease can end while its holder is paused."
    ),
    immune=_("MySQL session and PostgreSQL session, while the holder's connection lives."),
)
def _paused(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Stop a holder with SIGSTOP for twice its lease, between its read and its write."""
    testbed.use("fenced" if is_repaired else "naive")
    stop = partial(buy_while_holder_stalls, testbed, fault="stop")
    return stop(at_least=2 * TTL, timeout=4 * TTL) | {"ttl": TTL}


@scenario(
    name="gil-held",
    fault="paused",
    row="F2",
    title=_("A C call holds the GIL, and the watchdog cannot run"),
    broken="redis + naive",
    repaired="redis + fenced",
    story=_(
        "A C call in buyer A's process held the GIL longer than the lease of %(b_ttl).1f s. The "
        "watchdog could not renew it; B got the lock after %(b_second_waited)s.\n"
        "For %(b_overlap_seconds).1f s both thought they held the lock, and A's late write was "
        "accepted: %(b_sold)d sold of %(b_stock)d.\n"
        "With the fence, A's late write was refused: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_("The fence: while the GIL is held, no thread of the process can renew the lease."),
    immune=_("MySQL session and PostgreSQL session, while the holder's connection lives."),
)
def _gil_held(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Hold the GIL in one thread of the holder until another process has bought."""
    testbed.use("fenced" if is_repaired else "naive")
    return buy_while_holder_stalls(testbed, fault="gil", timeout=4 * TTL) | {"ttl": TTL}


@scenario(
    name="work-outlasts-lease",
    fault="late",
    row="F6",
    title=_("The work outlasts the lease"),
    broken=gettext_noop("redis + naive, not renewed"),
    repaired=gettext_noop("redis + naive, watchdog"),
    story=_(
        "Buyer A worked longer than its lease of %(b_ttl).1f s, which was not renewed: buyer B "
        "was granted the lock after %(b_second_waited)s.\n"
        "Both wrote what they had computed: %(b_sold)d sold of %(b_stock)d.\n"
        "With the watchdog, buyer B waited %(r_second_waited)s, until A had written. Then it "
        "was told “sold out”: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_("The watchdog, which extends the lease every third of its length."),
    immune=_(
        "ZooKeeper, MySQL session and PostgreSQL session: a session lasts until its process "
        "closes it or ends."
    ),
)
def _work_outlasts_lease(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Let the holder work until another buyer has waited twice its lease, or has bought."""
    testbed.use("naive", TTL=SLOW_WORK_TTL)
    longest = 2 * SLOW_WORK_TTL
    facts = buy_while_holder_stalls(testbed, timeout=10.0, at_most=longest, renew=is_repaired)
    return facts | {"ttl": SLOW_WORK_TTL}


@scenario(
    name="release-before-commit",
    fault="commit",
    row="F8",
    title=_("The lock is released before the commit"),
    broken=gettext_noop("redis + naive, released early"),
    repaired=gettext_noop("redis + naive, released after the commit"),
    story=_(
        "Buyer A released the lock before its transaction committed, and buyer B got it after "
        "%(b_second_waited)s and read the old stock.\n"
        "The lock never had two holders at once (%(b_lease_overlaps)d overlaps), yet %(b_sold)d "
        "were sold of %(b_stock)d.\n"
        "When the lock was released after the commit, buyer B waited %(r_second_waited)s and "
        "read the new stock: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_("The lock goes around the transaction, never inside it."),
    immune=_("None: no lock can guard what is written after its release."),
    requires_overlap=False,
)
def _release_before_commit(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Run the same purchase with the release before the commit, then after it."""
    testbed.use("naive", TTL=30.0)
    longest = WORK_SECONDS if is_repaired else ANSWERED
    return buy_while_holder_stalls(testbed, at_most=longest, early=not is_repaired)
