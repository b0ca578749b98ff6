"""A private ZooKeeper: one server or an ensemble."""

from pathlib import Path

from .base import HOST, Group, Server
from .programs import ServerMissing, required

_JARS = Path("/usr/share/java")


class ZooKeeperNode(Server):
    """One node of a `ZooKeeper` ensemble."""

    def __init__(self, myid: int) -> None:
        super().__init__()
        self.myid = myid
        self.peer_ports = (self.reserve(), self.reserve())
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
        # The manifest of Debian's jar names all its dependencies but the log implementation.
        jars = f"{jar}:{_JARS / 'slf4j-simple.jar'}"
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [required("java"), *options, main, str(settings)]

    def is_ready(self) -> bool:
        # A node without a quorum replies that it is not currently serving requests.
        return b"Mode:" in self.send(b"srvr")


class ZooKeeper(Group):
    """A single ZooKeeper or an ensemble."""

    def __init__(self, nodes: int = 3) -> None:
        self.servers = self.nodes = [ZooKeeperNode(myid) for myid in range(1, nodes + 1)]
        peers = [
            f"server.{node.myid}={HOST}:{node.peer_ports[0]}:{node.peer_ports[1]}"
            for node in self.nodes
        ]
        for node in self.nodes:
            node.settings = [
                "tickTime=500",  # sessions last between two and twenty ticks
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
        """Return the addresses, comma separated as kazoo expects them."""
        return ",".join(node.url for node in self.nodes)
