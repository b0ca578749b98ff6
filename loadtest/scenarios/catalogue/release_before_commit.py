"""F8: the lock is given back before the transaction commits."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import Stage


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """The same purchase with the release on either side of the commit."""
    stage.redis_lock(TTL=30.0)
    stage.guard("redis", "naive")
    timeout = 0.5 if is_repaired else 5.0
    return behind_anothers_back(stage, timeout=timeout, early=not is_repaired)


SCENARIO = Scenario(
    name="release-before-commit",
    row="F8",
    title=_("The lock is released before the commit"),
    broken="redis + naive, released early",
    repaired="redis + naive, released after the commit",
    sentences=(
        _(
            "Buyer A released the lock before its transaction committed, and buyer B got it after "
            "%(b_second_waited).2f s and read the old stock."
        ),
        _(
            "The lock was never held twice (%(b_lease_overlaps)d overlaps), yet %(b_sold)d were "
            "sold of %(b_stock)d."
        ),
        _(
            "Released after the commit, it kept buyer B out for %(r_second_waited).1f s, and "
            "%(r_sold)d was sold of %(r_stock)d."
        ),
    ),
    repair=_("The lock goes around the transaction, never inside it."),
    immune=_("None: no lock can guard what is written after its release."),
    play=play,
    is_overlap=False,
)
