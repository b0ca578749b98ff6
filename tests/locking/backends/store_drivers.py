"""The stores of the library's backends, and their faults, for the public contract.

Each has servers of its own, because tests kill them, and a proxy for the clients that are `far`.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from pytest_django import DjangoDbBlocker

from devservers import MariaDb, PostgreSql, Redis, Server, ZooKeeper, start_all, stop_all
from devservers.faults.clock import Clock
from devservers.faults.ensemble import leader
from devservers.faults.injectors import CutReplication
from devservers.faults.waiting import until
from locking.lease import Lease, LockStore
from locking.testing.driver import StoreDriver
from tests.devservers.faults.databases import FullDisk, Standby
from tests.devservers.faults.interception import ExpireSession, InterceptingProxy
from tests.devservers.redis_groups import Node, RedisCluster, Sentinel, SentinelRedis
from tests.locking.backends.database.database_tools import Root, alias_for
from tests.locking.backends.database.postgresql_tools import Superuser, migrated


class OwnStore(StoreDriver):
    """Servers and proxies of a test class, which `start` puts on the stack."""

    servers: list[Any]
    proxies: list[InterceptingProxy]
    databases: Mapping[str, str] = {}
    """The aliases in DATABASES that another process needs, with their URLs."""

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        """Start what ends with the stack."""
        self.stack = stack

    def proxied(self, *ports: int) -> list[InterceptingProxy]:
        """Put a proxy before each port."""
        self.proxies = [self.stack.enter_context(InterceptingProxy(port)) for port in ports]
        return self.proxies

    def clock_of(self, *servers: Server) -> Clock:
        """Return one clock for servers that have not started."""
        clock = Clock(Path(servers[0].folder))
        for server in servers:
            clock.drive(server)
        return clock

    def recover(self) -> None:
        for proxy in self.proxies:
            proxy.replies_to_lose = 0
            proxy.accept()
        if hasattr(self, "clock"):
            self.clock.shift(0)
        for server in self.servers:
            server.resume()
        start_all(self.servers)

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def lose_reply(self) -> None:
        self.proxies[0].replies_to_lose = 1

    def cut(self, *, refuse: bool) -> None:
        for proxy in self.proxies:
            proxy.cut(refuse=refuse)

    def hold(self) -> None:
        for proxy in self.proxies:
            proxy.hold_requests()


PAGE = Path(__file__).parents[3] / "docs/how-to/redis-deployments.md"
(RULE,) = re.findall("^ACL SETUSER locks .*$", PAGE.read_text(), re.M)
"""Creates the user that the documentation recommends, with no more rights than the locks need."""


def start_for_user(*nodes: Node) -> None:
    """Start servers again and create the user, whom they keep in memory only."""
    start_all(nodes)
    for node in nodes:
        node.ask(RULE)


def as_user(url: str) -> str:
    """Return the address for that user."""
    return url.replace("//", "//locks:secret@")


class RedisDriver(OwnStore):
    """One Redis without persistence, its clock, and a replica for a failover."""

    options = {"SOCKET_TIMEOUT": 1.0, "CONNECT_TIMEOUT": 1.0}

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        super().start(stack, blocker)
        self.servers, self.replicas = [Node()], ExitStack()
        self.clock = self.clock_of(*self.servers)
        stack.callback(self.replicas.close)
        self.master = stack.enter_context(self.servers[0])
        self.master.ask(RULE)
        (proxy,) = self.proxied(self.master.port)
        self.location, self.far = as_user(self.master.url), as_user(f"redis://{proxy.url}/0")

    def recover(self) -> None:
        super().recover()
        self.master.ask(RULE)
        self.replicas.close()
        self.location = as_user(self.master.url)

    def requests(self) -> int:
        return evalshas(self.master)

    def restart(self) -> bool:
        self.master.kill()
        start_for_user(self.master)
        return False

    def shift_clock(self, seconds: float) -> None:
        self.clock.shift(seconds)

    def cut_replication(self) -> None:
        replica = self.replicas.enter_context(Node(replica_of=self.master))
        self.fault = CutReplication(replica)
        replica.ask(RULE)
        self.fault.inject()
        assert self.fault.injected

    def promote_replica(self) -> bool:
        self.master.kill()
        self.fault.promote()
        self.location = as_user(self.fault.replica.url)
        return False


def evalshas(*servers: Node) -> int:
    """Return the number of scripts that clients have run."""
    stats = "".join(one.ask("INFO commandstats") for one in servers)
    return sum(map(int, re.findall(r"cmdstat_evalsha:calls=(\d+)", stats)))


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


class GroupDriver(OwnStore):
    """A group of Redis servers, which clients that are `far` know by their proxies only.

    The servers do not use the proxies, so a fault there concerns clients alone; tests of one store
    have its failovers.
    """

    options = RedisDriver.options
    group: type[SentinelRedis | RedisCluster]

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        super().start(stack, blocker)
        group = stack.enter_context(self.group())
        group.disable_failover()
        self.masters = group.masters if isinstance(group, RedisCluster) else [group.master]
        for master in self.masters:
            master.ask(RULE)
        self.nodes, self.servers, ports = group.nodes, self.masters, dict[int, int]()
        proxies = {
            node.port: stack.enter_context(TranslatingProxy(node.port, ports))
            for node in group.nodes
        }
        self.proxies = [proxies[master.port] for master in self.masters]
        self.location = self.far = as_user(group.url)
        for port, proxy in ports.items():
            self.far = self.far.replace(f":{port}", f":{proxy}")

    def requests(self) -> int:
        return evalshas(*self.masters)


class SentinelDriver(GroupDriver):
    """A master behind Sentinels."""

    group = SentinelRedis

    def restart(self) -> bool:
        pair = [node for node in self.nodes if not isinstance(node, Sentinel)]
        for node in pair:
            node.kill()
        start_for_user(*pair)
        return False


class ClusterDriver(GroupDriver):
    """Six nodes; the name of a test may be at any of the masters."""

    group = RedisCluster
    lose_reply = StoreDriver.lose_reply

    def restart(self) -> bool:
        for master in self.masters:
            master.kill()
        start_for_user(*self.masters)
        for master in self.masters:
            master.wait_for("CLUSTER INFO", "cluster_state:ok")
        return False


class RedLockDriver(OwnStore):
    """Five masters; proxies are in front of three, a majority."""

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        super().start(stack, blocker)
        self.servers = [Redis() for _ in range(5)]
        stack.callback(stop_all, self.servers)
        start_all(self.servers)
        self.location = [server.url for server in self.servers]
        proxies = self.proxied(*(server.port for server in self.servers[:3]))
        self.far = [*(f"redis://{proxy.url}/0" for proxy in proxies), *self.location[3:]]

    def stop_minority(self) -> None:
        for server in self.servers[:2]:
            server.kill()


class DatabaseDriver(OwnStore):
    """A server with a clock of its own, as an alias in DATABASES."""

    root: Root | Superuser | None = None
    server: MariaDb | PostgreSql

    def connect(self) -> Root | Superuser:
        """Return the administrator's connection, which ends with the server."""
        if self.root is None:
            made = Root(self.server) if isinstance(self.server, MariaDb) else None
            self.root = made or Superuser(self.server)  # type: ignore[arg-type]
        return self.root

    def serve(self, server: MariaDb | PostgreSql) -> None:
        """Start the server and its proxy, with their aliases, and one where nothing listens."""
        self.server, self.servers = server, [server]
        self.clock = self.clock_of(server)
        self.stack.enter_context(server)
        (proxy,) = self.proxied(server.port)
        for alias, port in (("driven-far", proxy.port), ("nowhere", 1)):
            url = server.url.replace(f":{server.port}", f":{port}")
            self.stack.enter_context(alias_for(url, alias))
        self.location, self.far = "driven", "driven-far"
        self.databases = {"driven": server.url}

    def requests(self) -> int:
        return self.connect().requests()

    def restart(self) -> bool:
        self.root, started = None, time.monotonic()
        self.server.kill()
        # The token of a MariaDB session holds the second of the server's start.
        until(lambda: time.monotonic() > started + 1, "another second")
        self.server.start()
        return True

    def shift_clock(self, seconds: float) -> None:
        self.clock.shift(seconds)


class MariaDbDriver(DatabaseDriver):
    """MariaDB with the table of the locks."""

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        super().start(stack, blocker)
        self.serve(MariaDb())
        stack.enter_context(alias_for(self.server.url, "driven", blocker))


class PostgreSqlDriver(DatabaseDriver):
    """PostgreSQL, and a standby that may replace it."""

    standbys: ExitStack | None = None

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        super().start(stack, blocker)
        # A snapshot of autovacuum would keep dead rows, and with them a full disk full.
        config = ["--fsync=off", "--autovacuum=off"]
        config.append("--shared_preload_libraries=pg_stat_statements")
        server = PostgreSql(config=config)
        stack.callback(server.stop)
        self.disk = FullDisk(server, "base")
        self.serve(server)
        stack.enter_context(migrated(self.server, "driven", blocker))

    def cut_replication(self) -> None:
        self.standbys = ExitStack()
        self.standby = self.standbys.enter_context(Standby(self.server))
        self.standby.wait_for_replay()
        self.standby.cut()

    def promote_replica(self) -> bool:
        assert self.standbys is not None
        self.root = None
        self.server.kill()
        self.standby.promote()
        self.location = self.standbys.enter_context(alias_for(self.standby.url, "standby"))
        return False

    def recover(self) -> None:
        super().recover()
        if self.standbys is not None:
            self.standbys.close()
            self.standbys, self.location = None, "driven"


class Sessions(DatabaseDriver):
    """A database whose locks end with sessions."""

    def end_session(self, store: LockStore, lease: Lease) -> None:
        self.connect().kill(store.backend.pinned[lease.owner].id)  # type: ignore[attr-defined]


class MariaDbSessions(Sessions, MariaDbDriver):
    shift_clock = StoreDriver.shift_clock  # GET_LOCK waits by the kernel's clock, not the test's


class PostgreSqlSessions(Sessions, PostgreSqlDriver):
    pass


class ZooKeeperDriver(OwnStore):
    """An ensemble of three; the proxy is in front of the first."""

    options = {"SESSION_TIMEOUT": 2.0, "PASSWORD": "secret"}
    SIGNS_OF_LIFE = ("Exists", "Sync", "Transaction")
    sent = 0

    def start(self, stack: ExitStack, blocker: DjangoDbBlocker) -> None:
        super().start(stack, blocker)
        ensemble = ZooKeeper(nodes=3)
        self.servers = ensemble.nodes
        self.clock = self.clock_of(*self.servers)
        stack.enter_context(ensemble)
        (proxy,) = self.proxied(self.servers[0].port)
        self.location, self.far = ensemble.hosts, proxy.url
        call = KazooClient._call

        def counted(asking: KazooClient, request: Any, reply: Any) -> Any:
            self.sent += type(request).__name__ not in self.SIGNS_OF_LIFE
            return call(asking, request, reply)

        KazooClient._call = counted
        stack.callback(setattr, KazooClient, "_call", call)

    def requests(self) -> int:
        return self.sent

    def restart(self) -> bool:
        for node in self.servers:
            node.kill()
        start_all(self.servers)
        return True

    def promote_replica(self) -> bool:
        old = leader(self.servers)
        old.kill()
        leader([node for node in self.servers if node is not old])
        return True

    def stop_minority(self) -> None:
        self.servers[0].kill()

    def shift_clock(self, seconds: float) -> None:
        self.clock.shift(seconds)

    def end_session(self, store: LockStore, lease: Lease) -> None:
        session = store.backend.session  # type: ignore[attr-defined]
        fault = ExpireSession(str(self.location), session.client.client_id)
        fault.inject()
        assert fault.injected
