"""Each store is killed and comes back while people buy."""

import time
from functools import partial
from typing import Any

from loadtest.endure.judging import PATIENCE, Report, bought, statuses, sums, verdict
from loadtest.endure.shop import Shop, Told, answers, crowd
from loadtest.faults import until
from loadtest.telling import say

RECOVERY = {"redis": 1.0, "database": 3.0}
"""Seconds from the server's first answer to the first purchase."""
DOWN = 1.0


def _is_silent(port: int) -> bool:
    return not answers(port)


def _wait_for_purchase(told: list[Told]) -> float:
    """Seconds until one ends that begins after this call."""
    now = time.monotonic()
    until(lambda: bought(told, now), "a purchase", PATIENCE)
    return round(min(bought(told, now)) - now, 2)


def recovery(asked: dict[str, Any]) -> Report:
    """Each store is killed and comes back while people buy: the seconds to the next purchase."""
    took: dict[str, float] = {}
    with (
        Shop(stock=100_000) as shop,
        crowd(shop.buy, 4, pause=0.05) as told,
    ):
        for store in RECOVERY:
            port = asked["ports"][store]
            _wait_for_purchase(told)
            say("strike", do="kill", store=store, seconds=DOWN)
            until(partial(_is_silent, port), f"{store} being down", PATIENCE)
            until(partial(answers, port), f"{store} being up", PATIENCE)
            took[store] = _wait_for_purchase(told)
    breaches = [
        f"{store} took {took[store]} s, {limit:g} s were allowed"
        for store, limit in RECOVERY.items()
        if took[store] > limit
    ]
    return verdict([*breaches, *sums(shop, told)], seconds=took, answers=statuses(told))
