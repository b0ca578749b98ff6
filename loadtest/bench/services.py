"""What a service says it was asked: the cost of a lock that no client can hide."""

import socket
from collections.abc import Callable
from typing import NamedTuple, Self

from django.conf import settings
from django.db import connection
from redis import Redis

from loadtest.bench.locks.systems import Family


class Usage(NamedTuple):
    """Counters of a service since its start."""

    commands: int
    """Those inside scripts included."""
    reads: int
    """How often a client was read from: its round trips, unless it pipelines."""
    own: int = 1
    """What asking for them adds."""

    def since(self, before: "Usage") -> Self:
        """The difference, less the question itself."""
        commands, reads = self.commands - before.commands, self.reads - before.reads
        return type(self)(commands - self.own, reads - self.own, 0)


Requests = Callable[[], Usage]


def requests_of(family: Family) -> Requests:
    """What asks the service of a family for its counters."""
    if family == "mysql":
        return _mysql
    if family == "zookeeper":
        return _zookeeper
    urls = [settings.REDIS_URL] if family == "redis" else settings.REDLOCK_URLS
    clients = [Redis.from_url(url) for url in urls]

    def ask() -> Usage:
        found = [client.info("stats") for client in clients]
        commands = sum(stats["total_commands_processed"] for stats in found)
        return Usage(commands, sum(stats["total_reads_processed"] for stats in found), len(found))

    return ask


def redis_cpu_us() -> float:
    """Microseconds of CPU that the one Redis has used since its start."""
    used = Redis.from_url(settings.REDIS_URL).info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def _mysql() -> Usage:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
        count = int(cursor.fetchone()[1])
    return Usage(count, count)


def _zookeeper() -> Usage:
    count = int(float(mntr(settings.ZOOKEEPER_HOSTS.split(",")[0])["zk_packets_received"]))
    return Usage(count, count)


def mntr(node: str) -> dict[str, str]:
    """What a ZooKeeper at "host:port" has counted since its start."""
    host, port = node.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as asking:
        asking.sendall(b"mntr")
        with asking.makefile() as lines:
            return dict(line.rstrip("\n").split("\t", 1) for line in lines if "\t" in line)
