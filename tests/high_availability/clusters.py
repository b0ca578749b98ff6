"""Clusters of databases behind an HAProxy: Galera, of which one node is written to, and Patroni."""

import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from devservers import HOST, Group, MariaDb, Server, ServerError, ServerMissing, start_all
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until
from devservers.postgresql import HELLO, USER, unprivileged
from devservers.programs import required

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "haproxy"


class HaProxy(Server):
    """HAProxy with deploy/haproxy/FILE.cfg; `ports` are those of each server and of its check.

    `hello`: the first message of a client to which a server replies.
    """

    has_one_writer = True

    def __init__(self, file: str, *ports: tuple[int, int], hello: bytes = b"") -> None:
        super().__init__()
        self.file, self.ports, self.hello = file, ports, hello

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        text = re.sub(r"bind :\d+", f"bind {self.url}", (FOLDER / f"{self.file}.cfg").read_text())
        for number, (port, check) in enumerate(self.ports, 1):
            address = rf" db{number}:\d+ check( port \d+)?"
            text, count = re.subn(address, f" {HOST}:{port} check port {check}", text)
            assert count == 1
        if not self.has_one_writer:
            text = re.sub(r" backup|  stick.*", "", text)
        settings = self.folder / "haproxy.cfg"
        settings.write_text(text)
        return [required("haproxy"), "-db", "-f", str(settings)]

    def is_ready(self) -> bool:
        return bool(self.send(self.hello))


PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")


class GaleraNode(MariaDb):
    """One node. Without `peers` it starts a cluster of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.group_port = self.reserve()
        self.peers: Sequence[GaleraNode] = ()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.group_port}"

    def prepare(self) -> None:
        if not PROVIDER.exists():
            raise ServerMissing(PROVIDER.name)
        super().prepare()
        with self._sql.open("a") as statements:
            statements.write(f"CREATE USER IF NOT EXISTS haproxy@'{HOST}';\n")

    def copy(self, other: "GaleraNode") -> None:
        """Take over the data of a node that has stopped."""
        shutil.copytree(other.data, self.data)
        self._sql.touch()

    def command(self) -> list[str]:
        return [
            *super().command(),
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
            "--wsrep-sync-wait=1",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://{self.address}",
            f"--wsrep-node-address={self.address}",
            f"--wsrep-cluster-address=gcomm://{','.join(one.address for one in self.peers)}",
        ]

    def is_ready(self) -> bool:
        try:
            self.execute("SELECT 1 FROM mysql.user LIMIT 1")  # refused before it has joined
        except ServerError:
            return False
        return True

    def count(self, name: str) -> int:
        """Return the value of a status variable."""
        import MySQLdb  # not everywhere

        with closing(MySQLdb.connect(HOST, "root", "", "", self.port)) as session:
            cursor = session.cursor()
            cursor.execute("SHOW STATUS LIKE %s", [name])
            return int(cursor.fetchone()[1])


class Galera(Group):
    """Three nodes and the HAProxy in front of them, which leads to one of them, or to all."""

    def __init__(self, *, has_one_writer: bool = True) -> None:
        self.nodes = [GaleraNode() for _ in range(3)]
        self.proxy = HaProxy("galera", *((node.port, node.port) for node in self.nodes))
        self.proxy.has_one_writer = has_one_writer
        self.servers = [self.proxy, *self.nodes]

    def conflicts(self) -> int:
        """Return the number of transactions that were rolled back because of another node's."""
        return sum(node.count("wsrep_local_bf_aborts") for node in self.nodes)

    @property
    def url(self) -> str:
        """Return the address for clients."""
        return f"mysql://root@{self.proxy.url}/shop"

    def start(self) -> None:
        first, *others = self.nodes
        first.start()
        first.terminate()
        for node in others:
            node.copy(first)
        self._remember_each_other()
        start_all([*self.nodes, self.proxy])

    def _remember_each_other(self) -> None:
        """Let the nodes start as those of a cluster that was shut down: none copies another."""
        members = [str(uuid.uuid1()) for _ in self.nodes]
        view = ["#vwbeg", f"view_id: 3 {members[0]} 1", "bootstrap: 0"]
        view += [*(f"member: {member} 0" for member in members), "#vwend", ""]
        for node, member in zip(self.nodes, members, strict=True):
            node.peers = self.nodes
            (node.data / "gvwstate.dat").write_text("\n".join([f"my_uuid: {member}", *view]))


SETTINGS = {"ttl": 5, "loop_wait": 1, "retry_timeout": 2}
"""Seconds; ttl is at least loop_wait and twice retry_timeout. The defaults are 30, 10 and 10."""


class Etcd(Server):
    """One of the `peers`, all of which are in that list before the first of them starts."""

    def __init__(self, peers: "list[Etcd]") -> None:
        super().__init__()
        self.peers, self.peer_url = peers, f"http://{HOST}:{self.reserve()}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def command(self) -> list[str]:
        urls = {"listen-client": self.url, "advertise-client": self.url}
        urls |= {"listen-peer": self.peer_url, "initial-advertise-peer": self.peer_url}
        cluster = ",".join(f"{one.port}={one.peer_url}" for one in self.peers)
        options = [f"--{name}-urls={url}" for name, url in urls.items()]
        options += [f"--name={self.port}", f"--initial-cluster={cluster}"]
        return [required("etcd"), *options, f"--data-dir={self.data}"]

    def is_ready(self) -> bool:
        return b'"true"' in self.send(b"GET /health HTTP/1.0\r\n\r\n")

    def is_leader(self) -> bool:
        request = b"POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"
        status = json.loads(self.send(request).partition(b"\r\n\r\n")[2])
        return status["leader"] == status["header"]["member_id"]


class PatroniNode(Server):
    """A machine with Patroni and its PostgreSQL: `kill` ends both at the same time.

    They live in a process namespace of their own, which ends with its first process. The other
    node gets the changes through `replication`.
    """

    def __init__(self, name: str, etcds: list[Etcd], dynamic: dict[str, Any]) -> None:
        super().__init__()
        self.name, self.etcds, self.dynamic = name, etcds, dynamic
        self.rest_port = self.reserve()
        self.replication = Proxy(self.port)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/shop"

    def prepare(self) -> None:
        rest = f"{HOST}:{self.rest_port}"
        user = {"username": USER, "password": USER}
        trust = [f"host {of} all {HOST}/32 trust" for of in ("all", "replication")]
        settings = {
            "scope": "shop",
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"hosts": [f"{HOST}:{etcd.port}" for etcd in self.etcds]},
            "bootstrap": {
                "dcs": self.dynamic,
                "initdb": [{"encoding": "UTF8"}, "no-locale", "no-sync"],
                "pg_hba": trust,
            },
            "postgresql": {
                "listen": f"{HOST}:{self.port}",
                "connect_address": self.replication.url,
                "data_dir": str(self.data / "postgresql"),
                "bin_dir": str(Path(required("postgres")).resolve().parent),
                "pgpass": str(self.data / "pgpass"),
                "authentication": {"superuser": user, "replication": user},
                "parameters": {"unix_socket_directories": str(self.data)},
            },
        }
        self._settings.write_text(json.dumps(settings))  # YAML contains JSON
        if os.geteuid() == 0:
            self.folder.chmod(0o711)
            shutil.chown(self.data, USER, USER)

    @property
    def _settings(self) -> Path:
        return self.folder / "patroni.yml"

    def command(self) -> list[str]:
        user = ["--user", "--map-current-user"] if os.geteuid() else []
        space = [
            required("unshare"),
            *user,
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "--",
        ]
        return [*space, *unprivileged(), required("patroni"), str(self._settings)]

    def is_ready(self) -> bool:
        return self.responds("readiness")

    def responds(self, role: str) -> bool:
        """Return True if Patroni says that the server has this role, or `readiness`."""
        request = f"GET /{role} HTTP/1.0\r\n\r\n".encode()
        return b" 200 " in self.send(request, port=self.rest_port)

    def request_stop(self) -> None:
        """Kill it: nothing of it is needed again."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        super().stop()
        self.replication.close()


class Patroni(Group):
    """Two nodes, the first of which is the primary at first, three etcds and the HAProxy."""

    def __init__(self, *, is_synchronous: bool) -> None:
        self.etcds: list[Etcd] = []
        self.etcds += [Etcd(self.etcds) for _ in range(3)]
        dynamic = {**SETTINGS, "synchronous_mode": is_synchronous}
        dynamic["postgresql"] = {"parameters": {"max_connections": 200}}
        self.primary = PatroniNode("one", self.etcds, dynamic)
        self.standby = PatroniNode("two", self.etcds, dynamic)
        self.is_synchronous = is_synchronous
        ports = ((node.port, node.rest_port) for node in (self.primary, self.standby))
        self.proxy = HaProxy("patroni", *ports, hello=HELLO)
        self.servers = [self.proxy, self.standby, self.primary, *self.etcds]

    @property
    def url(self) -> str:
        """Return the address for clients."""
        return f"postgresql://{USER}@{self.proxy.url}/shop"

    def start(self) -> None:
        role = "synchronous" if self.is_synchronous else "replica"
        start_all(self.etcds)
        self.primary.start()
        until(lambda: self.primary.responds("primary"), "the primary")
        self.standby.start()
        until(lambda: self.standby.responds(role), f"a {role} standby", 40)
        url = self.primary.url.replace("/shop", "/postgres")
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("CREATE DATABASE shop")
        self.proxy.start()

    def kill_leader_of_etcd(self) -> None:
        """Kill it; return when the primary has kept its lock for longer than `ttl` since."""
        next(etcd for etcd in self.etcds if etcd.is_leader()).kill()
        done = self.renewals()
        until(lambda: self.renewals() > done + SETTINGS["ttl"], "the renewals of the lock", 40)

    def renewals(self) -> int:
        """Return how often the primary renewed its lock: once in `loop_wait`, a second."""
        return self.primary.log.read_text().count("the leader with the lock")
