"""L5: SETNX without an expiry, and a holder that crashes."""

from typing import Any

import redis
from django.utils.translation import gettext_lazy as _

from loadtest.recipes.redis_textbook import SetnxBackend
from loadtest.scenarios.left_behind import NAME, crash_and_wait
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import TTL, Stage

RECIPE = "loadtest.recipes.redis_textbook.SetnxBackend"


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """The textbook's lock, then the real one."""
    if is_repaired:
        stage.redis_lock()
        return crash_and_wait(stage, "redis", ttl=TTL)
    url = stage.crew.redis.url
    stage.lock("setnx", RECIPE, url)
    facts = crash_and_wait(stage, "setnx", ttl=TTL)
    return facts | {"pttl": end_of(url, SetnxBackend.prefix + NAME)}


def end_of(url: str, key: str) -> int:
    """What the server says of a key's end: -1 is never. The key is gone afterwards."""
    with redis.Redis.from_url(url) as direct:
        left = int(direct.pttl(key))
        direct.delete(key)
    return left


SCENARIO = Scenario(
    name="setnx-without-expiry",
    row="L5",
    title=_("SETNX without an expiry"),
    broken="SETNX, DEL",
    repaired="redis",
    sentences=(
        _(
            "Buyer A took the key with SETNX and was killed; the server says that the key ends "
            "never (PTTL %(b_pttl)d)."
        ),
        _("Buyer B gave up after %(b_waited).1f s, twice the lease that nobody had set."),
        _(
            "With SET NX PX, one command with a lease of %(r_ttl).0f s, B got in after "
            "%(r_waited).1f s."
        ),
    ),
    repair=_("An expiry, in the same command as the key."),
    immune=_("Every backend of the shop; this is a recipe of the textbooks, kept for the lab."),
    play=play,
    is_overlap=False,
)
