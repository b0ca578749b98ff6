"""One Redis, a master behind Sentinels, and a Cluster, under faults of the network or a crash.

    @pytest.mark.parametrize("store", DEPLOYMENTS, indirect=True)
    def test_(store: Deployment): ...

`far` leads through proxies: replies of Sentinels and nodes name the proxies instead of the servers,
as behind a translation of addresses. Servers of a group and the Sentinels themselves do not use
them, so a fault there concerns clients alone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from devservers import Redis, Server
from locking.backends.redis.cluster import slot_of
from tests.devservers.faults.interception import InterceptingProxy
from tests.devservers.redis_groups import SLOTS, ClusterNode, RedisCluster, SentinelRedis

DEPLOYMENTS = ["redis", "redis-sentinel", "redis-cluster"]
NAME = "n"
"""The lock of these tests."""


class TranslatingProxy(InterceptingProxy):
    """A proxy whose server's replies name the proxies of `ports` instead of the servers."""

    def __init__(self, port: int, ports: dict[int, int]) -> None:
        self._ports = ports
        super().__init__(port)
        ports[port] = self.port

    def _send_reply(self, sink: socket.socket, data: bytes) -> None:
        for server, proxy in self._ports.items():
            for before in (b":", b"$5\r\n"):  # in a Cluster's replies, and in a Sentinel's
                data = data.replace(b"%s%d\r\n" % (before, server), b"%s%d\r\n" % (before, proxy))
        super()._send_reply(sink, data)


@dataclass
class Deployment:
    """The servers of one URL."""

    url: str
    master: Redis
    """The one that has the lock."""
    proxy: InterceptingProxy
    """It is in front of `master`."""
    far: str
    """The URL of the proxies."""
    replicas: Sequence[Redis] = field(default=())

    def crash(self) -> None:
        """Kill the master and its replicas, and start them again; they have no persistence."""
        servers = [self.master, *self.replicas]
        for server in servers:
            server.kill()
        for server in servers:
            server.start()
        if isinstance(self.master, ClusterNode):
            self.master.wait_for("CLUSTER INFO", "cluster_state:ok")


def serve(store: str, group: Server | SentinelRedis | RedisCluster, stack: ExitStack) -> Deployment:
    """Return a deployment with its proxies, which end with the stack."""
    ports: dict[int, int] = {}

    def proxied(server: Redis) -> TranslatingProxy:
        return stack.enter_context(TranslatingProxy(server.port, ports))

    match group:
        case SentinelRedis():
            master, replicas, asked = group.master, [group.replica], [*group.sentinels]
            proxies = {master.port: proxied(master)}
        case RedisCluster():
            index = slot_of(NAME) * len(group.masters) // SLOTS
            master, replicas, asked = group.masters[index], [group.replicas[index]], group.masters
            proxies = {}
        case Redis():
            master, replicas, asked = group, [], [group]
            proxies = {}
    proxies.update({one.port: proxied(one) for one in asked})
    if isinstance(group, RedisCluster):
        proxies.update({one.port: proxied(one) for one in group.replicas})
    far = group.url
    for server, proxy in proxies.items():
        far = far.replace(f":{server}", f":{proxy.port}")
    return Deployment(group.url, master, proxies[master.port], far, replicas)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Return the deployment that the test names; a group of servers is the session's."""
    with ExitStack() as stack:
        if request.param == "redis":
            # It keeps its locks over a restart.
            group = stack.enter_context(Redis(config=("--appendonly", "yes")))
        else:
            group = request.getfixturevalue(request.param.replace("-", "_"))
        deployment = serve(request.param, group, stack)
        masters = group.masters if isinstance(group, RedisCluster) else [deployment.master]

        def flush() -> None:
            for master in masters:
                assert master.send(b"FLUSHALL\r\n") == b"+OK\r\n"

        flush()
        yield deployment
        flush()
