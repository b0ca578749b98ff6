"""Private MariaDB, PostgreSQL, Redis and ZooKeeper servers for the demo, the tests and the lab.

Each server listens on a free port of the loopback address, keeps its files in a directory of its
own and ends with the process that started it, even if that process receives SIGKILL (on Linux):

    with Redis() as redis:
        connect(redis.url)
        redis.kill()                      # SIGKILL, as in a crash
        redis.start()                     # same port, same data directory

Standard library only; a database's driver is imported where its server is used, and
`devservers.faults` needs more.
"""

from .base import HOST, Group, Server, ServerFailed, reserve_port, start_all, stop_all
from .mariadb import MariaDb
from .nginx import Nginx
from .postgresql import PostgreSql
from .programs import ServerError, ServerMissing
from .redis import Redis
from .zookeeper import ZooKeeper, ZooKeeperNode

__all__ = [
    "HOST",
    "Group",
    "MariaDb",
    "Nginx",
    "PostgreSql",
    "Redis",
    "Server",
    "ServerError",
    "ServerFailed",
    "ServerMissing",
    "ZooKeeper",
    "ZooKeeperNode",
    "reserve_port",
    "start_all",
    "stop_all",
]
