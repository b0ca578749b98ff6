"""F1: a holder is killed, and the others wait out its lease."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.left_behind import crash_and_wait
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import TTL, ZOOKEEPER, Stage

LONG = 5.0
"""A lease as long as the slowest work, as one chooses it without a watchdog."""
TOO_LONG = 3.0
"""Seconds without a sale that count as a failure."""


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """A long lease; then a short one, which a watchdog renews, and a session."""
    stage.redis_lock()
    ensemble = stage.crew.zookeeper  # before the clock runs
    facts = crash_and_wait(stage, "redis", ttl=TTL if is_repaired else LONG, patience=10)
    facts["broke"] = facts["waited"] > TOO_LONG
    if is_repaired:
        session = {"OPTIONS": {"SESSION_TIMEOUT": TTL}}
        stage.lock("zookeeper", ZOOKEEPER, ensemble.hosts, **session)
        facts["session_waited"] = crash_and_wait(
            stage, "zookeeper", ttl=TTL, patience=10, names=("buyer C", "buyer D")
        )["waited"]
    return facts


SCENARIO = Scenario(
    name="holder-killed",
    row="F1",
    title=_("The holder is killed"),
    broken="redis, long lease",
    repaired="redis, short lease and watchdog; zookeeper session",
    sentences=(
        _(
            "Buyer A was killed with a lease of %(b_ttl).0f s in its hand: buyer B stood still for "
            "%(b_waited).1f s."
        ),
        _(
            "With a lease of %(r_ttl).0f s, which the watchdog renews while its holder lives, B "
            "waited %(r_waited).1f s."
        ),
        _(
            "In ZooKeeper the next one waited %(r_session_waited).1f s for the dead holder's "
            "session to end."
        ),
    ),
    repair=_("A short lease that a watchdog renews; or a session, which ends with its process."),
    immune=_("mysql_session: the server frees its locks the moment the connection breaks."),
    play=play,
    is_overlap=False,
)
