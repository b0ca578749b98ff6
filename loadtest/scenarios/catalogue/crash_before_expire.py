"""L6: SETNX and EXPIRE are two commands, and a crash fits between them."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.recipes.redis_textbook import SetnxExpireBackend
from loadtest.scenarios.catalogue.setnx_without_expiry import end_of
from loadtest.scenarios.left_behind import NAME, crash_and_wait
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import TTL, Stage

RECIPE = "loadtest.recipes.redis_textbook.SetnxExpireBackend"
BETWEEN = "redis_setnx_expire.between"


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """SIGKILL between the two; then of a holder whose one command did both."""
    if is_repaired:
        stage.redis_lock()
        return crash_and_wait(stage, "redis", ttl=TTL)
    url = stage.crew.redis.url
    stage.lock("setnx_expire", RECIPE, url)
    facts = crash_and_wait(stage, "setnx_expire", ttl=TTL, at=BETWEEN)
    return facts | {"pttl": end_of(url, SetnxExpireBackend.prefix + NAME)}


SCENARIO = Scenario(
    name="crash-between-setnx-and-expire",
    row="L6",
    title=_("A crash between SETNX and EXPIRE"),
    broken="SETNX, EXPIRE, DEL",
    repaired="redis",
    sentences=(
        _(
            "Buyer A was killed after SETNX and before EXPIRE: the key is there, and ends never "
            "(PTTL %(b_pttl)d)."
        ),
        _("Buyer B gave up after %(b_waited).1f s, though the lease was to be %(b_ttl).0f s."),
        _("With both in one command, B got in %(r_waited).1f s after the crash."),
    ),
    repair=_("One command that sets key and expiry: SET NX PX, or a script."),
    immune=_("Every backend of the shop; this is a recipe of the textbooks, kept for the lab."),
    play=play,
    is_overlap=False,
)
