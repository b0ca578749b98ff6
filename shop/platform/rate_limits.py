"""Rate limits per customer and per client address.

The counters are in the Redis of CACHE_URL and shared by all processes. While it is unavailable
nothing is limited: rate limits protect the shop from load, they do not guard the stock.
"""

import logging
import math
import time
from functools import cache
from ipaddress import IPv6Address, IPv6Network

from django.conf import settings
from django.http import HttpRequest
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter
from redis.exceptions import RedisError

from locking.backends.redis.connection import MINIMAL_HANDSHAKE
from shop.errors import TooMany
from shop.settings.redis_retry import RetryOnce

logger = logging.getLogger("shop")

MAX_CLIENTS = 100_000
"""Clients that a process remembers for each limit."""

_parsed = cache(parse)
_counted: dict[str, tuple[float, dict[str, bool]]] = {}
"""For each limit: the start of the window (monotonic), and for each client of this window whether
Redis has counted its first request."""
clear = _counted.clear


@cache
def _limiter(url: str) -> FixedWindowRateLimiter:
    storage = storage_from_string(
        url,
        key_prefix="rate-limit",
        socket_timeout=0.5,
        socket_connect_timeout=0.5,
        retry=RetryOnce(url),  # type: ignore[arg-type]
        **MINIMAL_HANDSHAKE,
    )
    return FixedWindowRateLimiter(storage)


def count(limit: str, *client: str, cost: int = 1) -> None:
    """Count `cost` requests of `client`. Raise TooMany above the limit, e.g. "10/minute".

    A cost of 0 only checks the limit; -1 takes a counted request back.
    """
    limiter, item = _limiter(settings.CACHE_URL), _parsed(limit)
    try:
        allowed = limiter.hit(item, *client, cost=cost) if cost else limiter.test(item, *client)
        if cost >= 0 and not allowed:
            reset_time = limiter.get_window_stats(item, *client).reset_time
            raise TooMany(retry_after=max(1, round(reset_time - time.time())))
    except (RedisError, OSError) as error:
        logger.warning("Rate limiting disabled: Redis is unavailable (%s)", error)


def count_repeated(limit: str, *client: str) -> None:
    """Count like `count`, without a round trip for a client's first request in a window.

    The second request counts two, so a client gains at most one request per window in each
    process (in each of its threads, at worst). Most clients of a sale send only one.
    """
    now, name = time.monotonic(), "/".join(client)
    since, counted = _counted.get(limit, (-math.inf, {}))
    if now - since > _parsed(limit).get_expiry() or len(counted) > MAX_CLIENTS:
        since, counted = _counted[limit] = (now, {})
    if name not in counted:
        counted[name] = False
        return
    count(limit, *client, cost=1 if counted[name] else 2)
    counted[name] = True


def address_of(request: HttpRequest) -> str:
    """Return the client's address, as far as our own proxies can tell.

    Each of the PROXY_HOPS proxies appends the address that it saw to X-Forwarded-For; entries
    further left were sent by the client and may be forged. Of IPv6 it is the network of 64 bits,
    which one customer has as a whole.
    """
    address = str(request.META.get("REMOTE_ADDR", ""))
    if settings.PROXY_HOPS:
        seen = request.headers.get("X-Forwarded-For", "").split(",")
        if len(seen) >= settings.PROXY_HOPS:
            address = str(seen[-settings.PROXY_HOPS]).strip()[:45]
    try:
        known = IPv6Address(address)
    except ValueError:
        return address
    return address if known.ipv4_mapped else str(IPv6Network((known, 64), strict=False))
