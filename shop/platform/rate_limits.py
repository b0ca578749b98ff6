"""Floods: how often one person may knock.

Counted in Redis, so that all processes count together. When Redis is silent everybody may pass:
a throttle protects the shop, it does not guard the stock.
"""

import logging
import time
from functools import cache

from django.conf import settings
from django.http import HttpRequest
from limits import RateLimitItem, parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter
from redis.exceptions import RedisError

from locking.backends.redis.connection import MINIMAL_HANDSHAKE
from locking.backends.redis.pool import RetryOnce
from shop.errors import TooMany

logger = logging.getLogger("shop")


@cache
def _limiter(url: str) -> FixedWindowRateLimiter:
    storage = storage_from_string(
        url,
        key_prefix="throttle",
        socket_timeout=0.5,
        socket_connect_timeout=0.5,
        retry=RetryOnce(url),  # type: ignore[arg-type]
        **MINIMAL_HANDSHAKE,
    )
    return FixedWindowRateLimiter(storage)


_parsed = cache(parse)
MAX_ONCE = 100_000
_once: dict[str, tuple[float, dict[str, bool]]] = {}
"""For each limit: since when (monotonic), who has come, and whether that was counted."""


def count(limit: str, *who: str) -> None:
    """Count one more of `who`. Raises TooMany above the limit, e.g. "10/minute"."""
    _ask(limit, who, cost=1)


def count_returning(limit: str, *who: str) -> None:
    """As `count`, but who comes once in a window costs no round trip: the second time counts two.

    In a crowd everybody comes once. A flood gains one try a window in each process, at worst in
    each of its threads at once: no hole where, as for "buy", the limit is a person's and far above.
    """
    now, name = time.monotonic(), "/".join(who)
    since, once = _once.get(limit, (0.0, {}))
    if now - since > _parsed(limit).get_expiry() or len(once) > MAX_ONCE:
        since, once = _once[limit] = (now, {})
    if name not in once:
        once[name] = False
        return
    _ask(limit, who, cost=1 if once[name] else 2)
    once[name] = True


def take_back(limit: str, *who: str) -> None:
    """Count one less of `who`."""
    _ask(limit, who, cost=-1)


def check(limit: str, *who: str) -> None:
    """Raise TooMany when `who` has used up the limit; counts nothing."""
    _ask(limit, who, cost=0)


def _ask(limit: str, who: tuple[str, ...], *, cost: int) -> None:
    limiter, item = _limiter(settings.REDIS_URL), _parsed(limit)
    try:
        allowed = limiter.hit(item, *who, cost=cost) if cost else limiter.test(item, *who)
        if not allowed:
            raise TooMany(retry_after=_seconds_left(limiter, item, who))
    except (RedisError, OSError) as error:
        logger.warning("nobody counts the floods: %s", error)


def _seconds_left(
    limiter: FixedWindowRateLimiter, item: RateLimitItem, who: tuple[str, ...]
) -> int:
    return max(1, round(limiter.get_window_stats(item, *who).reset_time - time.time()))


def address_of(request: HttpRequest) -> str:
    """Where a request comes from, as far as our own proxies can tell.

    Each proxy of ours appends the address that it saw to X-Forwarded-For; what stands further
    left was sent by the client and may be anything.
    """
    if settings.PROXY_HOPS:
        seen = request.headers.get("X-Forwarded-For", "").split(",")
        if len(seen) >= settings.PROXY_HOPS:
            return str(seen[-settings.PROXY_HOPS]).strip()[:45]
    return str(request.META.get("REMOTE_ADDR", ""))
