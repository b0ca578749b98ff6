"""A Galera cluster of three MariaDB servers behind HAProxy, of which one is written to."""

import shutil
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from devservers import HOST, Group, MariaDb, ServerError, ServerMissing, start_all
from tests.devservers.haproxy import HaProxy

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
