"""F6: the work takes longer than the lease, with nobody to renew it; then with the watchdog."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import Stage

TTL = 1.5


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """The holder works until another has waited twice its lease, or has bought."""
    stage.redis_lock(TTL=TTL)
    stage.guard("redis", "naive")
    timeout = 2 * TTL if is_repaired else 10.0
    return behind_anothers_back(stage, timeout=timeout, renew=is_repaired) | {"ttl": TTL}


SCENARIO = Scenario(
    name="work-outlasts-lease",
    row="F6",
    title=_("The work outlasts the lease"),
    broken="redis + naive, not renewed",
    repaired="redis + naive, watchdog",
    sentences=(
        _(
            "Buyer A worked longer than its lease of %(b_ttl).1f s, which nobody renewed: buyer B "
            "was let in after %(b_second_waited).1f s."
        ),
        _("Both wrote what they had computed: %(b_sold)d sold of %(b_stock)d."),
        _(
            "With the watchdog buyer B waited %(r_second_waited).1f s and was told “busy”; "
            "%(r_sold)d was sold of %(r_stock)d."
        ),
    ),
    repair=_("The watchdog, which extends the lease every third of its ttl while the holder runs."),
    immune=_("zookeeper and mysql_session: a session lasts as long as its process keeps it."),
    play=play,
)
