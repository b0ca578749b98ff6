"""L7: a holder that is late deletes its successor's lock, and lets a third one in."""

import time
from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.left_behind import NAME
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import Stage

RECIPE = "loadtest.recipes.redis_textbook.SetExpireBackend"
SHORT, LONG, LOOK = 0.5, 30.0, 0.4


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """A overstays its lease, B follows, A releases, C asks."""
    if is_repaired:
        stage.redis_lock()
    else:
        stage.lock("set_px", RECIPE, stage.crew.redis.url)
    alias = "redis" if is_repaired else "set_px"
    late, holder, third = (stage.actor(f"buyer {letter}") for letter in "ABC")
    ask = {"alias": alias, "name": NAME}
    late.call("acquire", timeout=5, ttl=SHORT, renew=False, **ask)
    second = holder.call("acquire", timeout=5, ttl=LONG, **ask)
    stage.until_passed(time.monotonic(), LOOK)
    released = late.call("release", name=NAME)
    told = third.call("acquire", timeout=LOOK, ttl=LONG, **ask)
    stage.until_passed(time.monotonic(), LOOK)
    for actor, has_it in ((third, told["ok"]), (holder, second["ok"])):
        if has_it:
            actor.call("release", name=NAME)
    return {
        "ttl": SHORT,
        "second_waited": round(second["seconds"], 2),
        "third_waited": round(told["seconds"], 2),
        "third_granted": int(told["ok"]),
        "release_refused": int(released.get("error") == "LockLost"),
        "broke": told["ok"],
    }


SCENARIO = Scenario(
    name="delete-successors-lock",
    row="L7",
    title=_("A late holder deletes its successor's lock"),
    broken="SET NX PX, DEL",
    repaired="redis",
    sentences=(
        _(
            "Buyer A overstayed its lease of %(b_ttl).1f s, buyer B followed, and A's DEL removed "
            "the key of B."
        ),
        _(
            "Buyer C was let in %(b_third_waited).2f s later, and held the lock together with B "
            "for %(b_overlap_seconds).1f s."
        ),
        _(
            "Where the release compares the owner, A's was refused (%(r_release_refused)d error), "
            "and C was kept out for %(r_third_waited).1f s."
        ),
    ),
    repair=_("A release that compares the owner and deletes in one script."),
    immune=_("Every backend of the shop; this is a recipe of the textbooks, kept for the lab."),
    play=play,
)
