"""FAULTS 17: a Redis that returns errors never grants a lock; the check of the store."""

import re
from contextlib import ExitStack

import pytest
import redis as client

from devservers import Redis
from locking import LockUnavailable
from locking.backends.redis.backend import RedisBackend
from locking.testing.calls import until_available, within
from tests.devservers.redis_groups import RedisCluster, Sentinel, SentinelRedis
from tests.locking.backends.redis.redis_tools import BOUND, Connect, claim, connect, server, take

__all__ = ["connect", "server"]
DOWN = "127.0.0.1:1"


def assert_refused(backend: RedisBackend, word: str) -> None:
    """Check for an error that names its cause, in bounded time, with and without a wait."""
    for timeout in (0, 0.5):
        with within(BOUND), pytest.raises(LockUnavailable, match=word) as caught:
            backend.acquire(claim(), timeout)
        assert caught.value.__cause__ is not None


@pytest.mark.faults(row=17, backend="redis", fired="refusal by CONFIG SET and REPLICAOF")
def test_error_replies_never_grant(server: Redis, connect: Connect) -> None:
    with client.Redis.from_url(server.url) as raw:
        for setting, value, usual, word in (
            ("min-replicas-to-write", 1, 0, "NOREPLICAS"),
            ("maxmemory", 1, 0, "OOM"),
        ):
            raw.config_set(setting, value)
            assert_refused(connect(server.url), word)
            raw.config_set(setting, usual)
        lease = take(connect(server.url))
        raw.config_set("maxmemory", 1)
        lease.backend.extend(lease.claim, lease.token, 60)
        lease.backend.release(lease.claim, lease.token)  # a held lock can be released
        raw.config_set("maxmemory", 0)
        known = connect(server.url)
        known.probe()
        raw.replicaof("127.0.0.1", "1")
        assert_refused(known, "READONLY")
        assert not known.pool.take(), "after a failover the address may be that of another server"
        raw.config_set("replica-serve-stale-data", "no")
        assert_refused(connect(server.url), "MASTERDOWN")
        raw.replicaof("NO", "ONE")
        raw.set("lock:{n}", "not a lock")
        assert_refused(connect(server.url), "WRONGTYPE")
        raw.delete("lock:{n}")
        raw.config_set("requirepass", "secret")
        assert_refused(connect(server.url), "authenticat")
        assert_refused(connect(server.url.replace("//", "//:wrong@")), "password")
        raw.config_set("requirepass", "")
        assert not raw.exists("lock:{n}")
        assert take(connect(server.url))


@pytest.mark.faults(row=17, backend="redis", fired="maxclients reached")
def test_too_many_connections(connect: Connect) -> None:
    with Redis(config=["--maxclients", "2"]) as server:
        with ExitStack() as stack:
            for _ in range(2):
                raw = stack.enter_context(client.Redis.from_url(server.url))
                raw.ping()
            assert_refused(connect(server.url), "max number of clients|onnection")
        backend = connect(server.url)
        assert until_available(lambda: take(backend)), "the server has noticed the ends"


def test_check_says_what_makes_a_server_unfit(
    redis_server: Redis, redis_sentinel: SentinelRedis, redis_cluster: RedisCluster
) -> None:
    """A server that is down cannot be asked."""
    plain, sentinels, cluster = redis_server.url, redis_sentinel.url, redis_cluster.url
    with (
        Redis(config=["--requirepass", "secret"]) as closed,
        Redis(replica_of=redis_server) as replica,
        Sentinel() as sentinel,
    ):
        cases = dict.fromkeys((plain, sentinels, cluster, f"redis://{DOWN}/0"), "")
        cases |= {f"redis+sentinel://{DOWN}/locks": "", closed.url: "E022"}
        for login, id_ in ((":secret", ""), (":wrong", "E022"), ("absent:secret", "E022")):
            cases[closed.url.replace("//", f"//{login}@")] = id_
        cases |= {
            replica.url: "E023 .* is a read-only replica",
            sentinel.url: "E023 .* is a Sentinel",
            redis_cluster.masters[0].url: r"E023 .* write redis\+cluster://",
            plain.replace("redis://", "redis+cluster://"): "E023 .* is no node of a Cluster",
            sentinels.replace("/locks", "/other"): "E023 .*'other'",
        }
        for url, expected in cases.items():
            found = RedisBackend.check_store("redis", {"LOCATION": url})
            text = "".join(f"{one.id} {one.msg}" for one in found)
            assert bool(text) is bool(expected), (url, text)
            assert re.search(expected, text), (url, text)
