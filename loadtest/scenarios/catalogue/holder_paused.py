"""F2: a holder is stopped past its lease, between its look at the stock and its write."""

import time
from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import TTL, Stage


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """SIGSTOP for twice the lease."""
    stage.redis_lock()
    stage.guard("redis", "fenced" if is_repaired else "naive")
    stopped = [0.0]

    def stop() -> None:
        stopped[0] = time.monotonic()

    def wait() -> None:
        stage.until_passed(stopped[0], 2 * TTL)
        stopped[0] = time.monotonic() - stopped[0]

    facts = behind_anothers_back(
        stage, fault="stop", meanwhile=stop, afterwards=wait, timeout=4 * TTL
    )
    return facts | {"ttl": TTL, "paused": round(stopped[0], 2)}


SCENARIO = Scenario(
    name="holder-paused",
    row="F2",
    title=_("The holder is paused past its lease"),
    broken="redis + naive",
    repaired="redis + fenced",
    sentences=(
        _(
            "Buyer A had looked at the stock when SIGSTOP held it for %(b_paused).1f s, longer "
            "than its lease of %(b_ttl).1f s; buyer B was sold a piece after "
            "%(b_second_waited).1f s."
        ),
        _(
            "For %(b_overlap_seconds).1f s both believed that they held it, and the late write of "
            "A was accepted: %(b_sold)d sold of %(b_stock)d."
        ),
        _(
            "With the fence the same pause ended in %(r_refused)d refused write and %(r_sold)d "
            "sold of %(r_stock)d, although both believed for %(r_overlap_seconds).1f s."
        ),
    ),
    repair=_(
        "The stock row carries the newest token that touched it and refuses an older one. No lease "
        "can help: it ends while its holder does not run."
    ),
    immune=_("mysql_session, as long as the holder's connection lives."),
    play=play,
)
