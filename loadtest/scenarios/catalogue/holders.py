"""Holders that are killed, stalled or too slow, and one that releases its lock too early."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import buy_while_holder_stalls, crash_and_wait
from loadtest.scenarios.testbed import TTL, ZOOKEEPER, Testbed

LONG_TTL = 5.0
"""Seconds of a lease as long as the slowest work: the usual choice without a watchdog."""
MAX_OUTAGE = 3.0
"""Seconds without a sale that count as a failure."""
SLOW_WORK_TTL = 1.5


@scenario(
    name="holder-killed",
    fault="killed",
    row="F1",
    title=_("The holder is killed"),
    broken=gettext_noop("redis, long lease"),
    repaired=gettext_noop("redis, short lease and watchdog; zookeeper session"),
    story=_(
        "Buyer A was killed while holding a %(b_ttl).0f s lease; buyer B had to wait "
        "%(b_waited).1f s.\n"
        "With a lease of %(r_ttl).0f s, which the watchdog renewed while A lived, B waited "
        "%(r_waited).1f s.\n"
        "In ZooKeeper the next buyer waited %(r_session_waited).1f s for the dead holder's "
        "session to end."
    ),
    repair=_("A short lease that a watchdog renews; or a session, which ends with its process."),
    immune=_("mysql_session: the server frees its locks the moment the connection breaks."),
    needs="ZooKeeper",
    requires_overlap=False,
)
def _killed(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Use a long lease; then a short one, which a watchdog renews, and a session."""
    testbed.add_lock()
    session = {"LOCATION": testbed.stores.zookeeper.hosts, "OPTIONS": {"SESSION_TIMEOUT": TTL}}
    facts = crash_and_wait(testbed, "redis", ttl=TTL if is_repaired else LONG_TTL, timeout=10)
    facts["broke"] = facts["waited"] > MAX_OUTAGE
    if is_repaired:
        testbed.add_lock("zookeeper", ZOOKEEPER, **session)
        names = ("buyer C", "buyer D")
        second = crash_and_wait(testbed, "zookeeper", ttl=TTL, timeout=10, names=names)
        facts["session_waited"] = second["waited"]
    return facts


@scenario(
    name="holder-paused",
    fault="paused",
    row="F2",
    title=_("The holder is paused past its lease"),
    broken="redis + naive",
    repaired="redis + fenced",
    story=_(
        "Buyer A had read the stock when SIGSTOP stopped it for %(b_paused).1f s, longer than "
        "its lease of %(b_ttl).1f s; buyer B bought a unit after %(b_second_waited).1f s.\n"
        "For %(b_overlap_seconds).1f s both thought they held the lock, and A's late write was "
        "accepted: %(b_sold)d sold of %(b_stock)d.\n"
        "With the fence, both again thought so for %(r_overlap_seconds).1f s, but A's late write "
        "was rejected: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_(
        "The stock row keeps the newest token that has written it and rejects older ones. A longer "
        "lease does not help: any lease can end while its holder is paused."
    ),
    immune=_("mysql_session, as long as the holder's connection lives."),
)
def _paused(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Stop a holder with SIGSTOP for twice its lease, between its read and its write."""
    testbed.use("fenced" if is_repaired else "naive")
    facts = buy_while_holder_stalls(testbed, fault="stop", at_least=2 * TTL, timeout=4 * TTL)
    return facts | {"ttl": TTL, "paused": facts["stalled"]}


@scenario(
    name="gil-held",
    fault="paused",
    row="F2",
    title=_("A C call holds the GIL, and the watchdog cannot run"),
    broken="redis + naive",
    repaired="redis + fenced",
    story=_(
        "A C call in buyer A's process held the GIL longer than the lease of %(b_ttl).1f s. The "
        "watchdog could not renew it; B got the lock after %(b_second_waited).1f s.\n"
        "For %(b_overlap_seconds).1f s both thought they held the lock, and A's late write was "
        "accepted: %(b_sold)d sold of %(b_stock)d.\n"
        "With the fence, A's late write was rejected: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_("The fence: while the GIL is held, no thread of the process can renew the lease."),
    immune=_("mysql_session, as long as the holder's connection lives."),
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
        "was granted the lock after %(b_second_waited).1f s.\n"
        "Both wrote what they had computed: %(b_sold)d sold of %(b_stock)d.\n"
        "With the watchdog, buyer B got the answer “busy” after %(r_second_waited).1f s; "
        "%(r_sold)d was sold of %(r_stock)d."
    ),
    repair=_("The watchdog, which extends the lease three times per ttl while the holder runs."),
    immune=_("zookeeper and mysql_session: a session lasts until its process closes it or ends."),
)
def _work_outlasts_lease(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Let the holder work until another buyer has waited twice its lease, or has bought."""
    testbed.use("naive", TTL=SLOW_WORK_TTL)
    timeout = 2 * SLOW_WORK_TTL if is_repaired else 10.0
    facts = buy_while_holder_stalls(testbed, timeout=timeout, renew=is_repaired)
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
        "%(b_second_waited).2f s and read the old stock.\n"
        "The lock never had two holders at once (%(b_lease_overlaps)d overlaps), yet %(b_sold)d "
        "were sold of %(b_stock)d.\n"
        "When the lock was released after the commit, buyer B waited for %(r_second_waited).1f "
        "s, and %(r_sold)d was sold of %(r_stock)d."
    ),
    repair=_("The lock goes around the transaction, never inside it."),
    immune=_("None: no lock can guard what is written after its release."),
    requires_overlap=False,
)
def _release_before_commit(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Run the same purchase with the release before the commit, then after it."""
    testbed.use("naive", TTL=30.0)
    timeout = 0.5 if is_repaired else 5.0
    return buy_while_holder_stalls(testbed, timeout=timeout, early=not is_repaired)
