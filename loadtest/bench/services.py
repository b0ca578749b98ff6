"""Counters of the services: the cost of a lock that no client can hide."""

import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

from django.conf import settings
from django.db import connection
from redis import Redis

from loadtest.bench.locks.systems import Family


class Usage(NamedTuple):
    """Counters of a service since its start."""

    commands: int
    """Commands, including those inside scripts."""
    reads: int
    """Reads from clients: their round trips, unless they pipeline."""
    own: int = 1
    """Requests that reading the counters adds."""

    def since(self, before: "Usage") -> Self:
        """Return the difference, without the requests that read the counters."""
        commands, reads = self.commands - before.commands, self.reads - before.reads
        return type(self)(commands - self.own, reads - self.own, 0)


Requests = Callable[[], Usage]


def requests_of(family: Family) -> Requests:
    """Return a function that reads the counters of a family's service."""
    if family == "mysql":
        return partial(_counted, "SHOW GLOBAL STATUS LIKE 'Questions'")
    if family == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        connection.close()  # a forked process must not share it
        return partial(_counted, "SELECT SUM(calls) FROM pg_stat_statements")
    if family == "zookeeper":
        return _zookeeper
    urls = [settings.REDIS_URL] if family == "redis" else settings.REDLOCK_URLS
    clients = [Redis.from_url(url) for url in urls]

    def read() -> Usage:
        found = [client.info("stats") for client in clients]
        commands = sum(stats["total_commands_processed"] for stats in found)
        return Usage(commands, sum(stats["total_reads_processed"] for stats in found), len(found))

    return read


def redis_cpu_us() -> float:
    """Return the CPU microseconds of the one Redis since its start."""
    used = Redis.from_url(settings.REDIS_URL).info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def _counted(sql: str) -> Usage:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        count = int(cursor.fetchone()[-1])
    return Usage(count, count)


def _zookeeper() -> Usage:
    nodes = settings.ZOOKEEPER_HOSTS.split(",")
    count = sum(int(float(mntr(node)["zk_packets_received"])) for node in nodes)
    return Usage(count, count)


def mntr(node: str) -> dict[str, str]:
    """Return the counters of a ZooKeeper node at "host:port" since its start."""
    host, port = node.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"mntr")
        with connection.makefile() as lines:
            return dict(line.rstrip("\n").split("\t", 1) for line in lines if "\t" in line)
