"""CACHE_URL and REDIS_URL: what may be evicted never shares a server with what must be kept."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as Client

from devservers import Redis, start_all, stop_all

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[3]
WRITE_EVERYTHING = """
from django.conf import settings
from django.core.cache import cache
from locking import locks, single_flight
from locking.lease import StoreLock
from shop.models import Sale
from shop.platform import rate_limits
from shop.reservations import store

single_flight.get_or_build("home:en", lambda: "page", ttl=60)
rate_limits.count("10/minute", "li")
sale = Sale(pk=1, generation=7)
store.create(sale=sale)
store.set_stock(sale=sale, quantity=5)
store.expire_at(sale=sale, until=4e9)
held = StoreLock(locks["redis"], "sale:1", ttl=60)
assert held.acquire()
for turn, size in enumerate(3 * (100_000, 10_000, 1_000, 100, 1)):  # until not even a lock fits
    for number in range(200):
        cache.set(f"page:{turn}:{number}", "x" * size)
assert store.left(sale=sale) == 5
held.lease.check()
# More than fits into what the server frees by itself once large requests are over.
assert all(StoreLock(locks["redis"], f"sale:{n}").acquire() for n in range(2, 2000))
print("bought")
"""


@pytest.fixture
def servers() -> Iterator[list[Redis]]:
    """Yield the server that keeps, and a small one that evicts."""
    small = ("--maxmemory", "8mb", "--maxmemory-policy")
    servers = [Redis(config=(*small, "noeviction")), Redis(config=(*small, "allkeys-lru"))]
    start_all(servers)
    yield servers
    stop_all(servers)


def _write(**urls: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "shell", "-v0", "-c", WRITE_EVERYTHING],
        cwd=ROOT,
        env={**os.environ, **urls},
        capture_output=True,
        text=True,
        check=False,
    )


def test_full_cache_leaves_locks_and_queued_sales_alone(servers: list[Redis]) -> None:
    keep, evict = servers
    done = _write(REDIS_URL=keep.url, CACHE_URL=evict.url)
    assert done.stdout == "bought\n", done.stderr
    with Client.from_url(evict.url) as cache:
        assert cache.info("stats")["evicted_keys"] > 0, "the cache was never full"
    with Client.from_url(keep.url, decode_responses=True) as client:
        kinds = {name.partition(":")[0] for name in client.scan_iter()}
        assert kinds == {"lock", "queue"}


def test_full_cache_stops_the_locks_of_a_shared_server(servers: list[Redis]) -> None:
    """The control: with one server for both, the same cached pages refuse the next lock."""
    done = _write(REDIS_URL=servers[0].url, CACHE_URL=servers[0].url.replace("/0", "/1"))
    assert "bought" not in done.stdout
    assert "maxmemory" in done.stderr
