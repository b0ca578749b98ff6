"""Malformed values, clients that send them, and a check that nothing changes."""

from collections.abc import Iterator

import pytest
import redis
from django.conf import settings

from inventory.models import Stock, StockMovement
from locking import locks
from shop.models import CustomerQuota, Order, Sale, User
from tests.shop.making import a_sale

JSON = "application/json"
LIMIT = 5
OTHER_KEYS = (b"shop:", b"rate-limit:", b"lock:{build:", b"lock:clock", b"rates:")
"""Prefixes in Redis of caches, counted requests, the locks that guard the building of pages, the
clock of all locks, and published rates."""
LOCKS = b"lock:"
"""Prefix of the tokens of locks: a purchase that is refused late, or replayed, acquires one."""


@pytest.fixture
def sale() -> Sale:
    return a_sale(limit=LIMIT)


def everything() -> tuple[object, ...]:
    """Return everything that malformed input could change."""
    rows = [model.objects.count() for model in (Order, StockMovement, CustomerQuota, User)]
    return (
        *rows,
        *Stock.objects.order_by("pk").values_list("pk", "quantity", "fence_token"),
        *Order.objects.order_by("pk").values_list("pk", "status"),
    )


def state(*but: bytes) -> tuple[object, ...]:
    """Return all rows, reservations and locks that a purchase changes; `but` are prefixes."""
    server = redis.Redis.from_url(settings.REDIS_URL)
    names = [name for name in server.scan_iter() if not name.startswith((*OTHER_KEYS, *but))]
    holders = [(held.name, held.owner) for held in locks["redis"].inspect()]
    return everything(), {name: server.dump(name) for name in names}, holders


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    # The settings drop the traceback of django.security.
    logged = [line for line in caplog.records if not line.name.startswith("django.security")]
    assert [line.getMessage() for line in logged if line.exc_info] == []


QUANTITIES = [
    *("0", "-1", "1.5", "", " ", " 1", "1 ", "+1", "01", "\0", "1\0", "9" * 20),
    *("1_0", "٣", "1.0", "1e0", "0x1", "one", "true", "NaN", "9" * 5000, "１"),
]
KEYS = ["", " ", "x" * 256, "a\0", "a\nb", "a\x7f", "a\x85b", "\u202e", None, 7, ["k"], "\ud800"]
