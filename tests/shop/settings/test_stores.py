"""CACHE_URL and REDIS_URL: what may be evicted never shares a server with what must be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis as Client

from devservers import Redis

ROOT = Path(__file__).resolve().parents[3]
WRITE_EVERYTHING = """
from django.core.cache import cache
from locking import locks, single_flight
from locking.lease import StoreLock
from shop.models import Sale
from shop.platform import rate_limits
from shop.reservations import store

single_flight.get_or_build("home:en", lambda: "page", ttl=60)
cache.set("page", "x")
rate_limits.count("10/minute", "li")
store.create(sale=Sale(pk=1, generation=7))
assert StoreLock(locks["redis"], "sale:1", ttl=60).acquire()
"""


def kinds(server: Redis) -> set[str]:
    """Return the first part of each key on a server."""
    with Client.from_url(server.url, decode_responses=True) as client:
        return {name.partition(":")[0] for name in client.scan_iter()}


@pytest.mark.parametrize("is_shared", [False, True], ids=["apart", "control"])
def test_only_the_cache_is_on_the_server_that_may_evict(is_shared: bool) -> None:
    with Redis() as keep, Redis() as evict:
        urls = {"REDIS_URL": keep.url, "CACHE_URL": keep.url if is_shared else evict.url}
        command = [sys.executable, "manage.py", "shell", "-v0", "-c", WRITE_EVERYTHING]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **urls}, check=True)
        assert ("shop" in kinds(keep), "shop" in kinds(evict)) == (is_shared, not is_shared)
        assert (kinds(keep) == {"lock", "queue"}) is not is_shared
