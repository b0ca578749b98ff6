"""A master that Sentinels watch, and a Cluster, of the embedded Valkey."""

from devservers import HOST, Group, Redis, start_all
from devservers.faults.waiting import until

SLOTS = 16384


class Node(Redis):
    """The embedded Valkey."""

    def __init__(self, *, replica_of: Redis | None = None) -> None:
        super().__init__(prefer="embedded", replica_of=replica_of)

    def wait_for(self, command: str, part: str) -> None:
        """Wait until the reply to a command contains `part`."""
        until(lambda: part in self.ask(command), f"{part} in {command}")


class Sentinel(Node):
    """One Sentinel; it watches `master`, if one is given, under the name "locks"."""

    def __init__(self, master: Redis | None = None) -> None:
        super().__init__()
        self.master = master

    def command(self) -> list[str]:
        settings = self.data / "sentinel.conf"
        if not settings.exists():  # it writes what it has learnt into it
            lines = [f"port {self.port}", f"bind {HOST}", f"dir {self.data}"]
            if self.master is not None:
                lines += [
                    f"sentinel monitor locks {HOST} {self.master.port} 2",
                    "sentinel down-after-milliseconds locks 500",
                    "sentinel failover-timeout locks 3000",
                ]
            settings.write_text("\n".join(lines) + "\n")
        return [self._program(), str(settings), "--sentinel"]

    def is_ready(self) -> bool:
        if self.master is None:
            return super().is_ready()
        reply = self.ask("SENTINEL MASTER locks")
        known = {"num-slaves": 1, "num-other-sentinels": 2}
        return all(f"{key}\r\n$1\r\n{count}" in reply for key, count in known.items())

    def names(self, master: Redis) -> bool:
        """Return True if it names this master."""
        return str(master.port) in self.ask("SENTINEL GET-MASTER-ADDR-BY-NAME locks")


class SentinelRedis(Group):
    """A master, its replica, and three Sentinels that promote the replica within two seconds."""

    def __init__(self) -> None:
        self.master = Node()
        self.replica = Node(replica_of=self.master)
        self.sentinels = [Sentinel(self.master) for _ in range(3)]
        self.servers = self.nodes = [*self.sentinels, self.replica, self.master]

    @property
    def url(self) -> str:
        """Return the address for clients, which names the Sentinels."""
        return f"redis+sentinel://{','.join(f'{HOST}:{one.port}' for one in self.sentinels)}/locks"

    def start(self) -> None:
        start_all([self.master, self.replica])
        # A Sentinel asks for replicas when it starts, and then only every ten seconds.
        self.master.wait_for("INFO replication", "state=online")
        start_all(self.sentinels)

    def disable_failover(self) -> None:
        """Keep the Sentinels from taking the master for down."""
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL SET locks down-after-milliseconds 600000")

    def names(self, master: Redis) -> bool:
        """Return True if a majority of the Sentinels names this master."""
        return sum(sentinel.names(master) for sentinel in self.sentinels) >= 2


class ClusterNode(Node):
    """One node of a `RedisCluster`."""

    def __init__(self) -> None:
        super().__init__()
        self.bus_port = self.reserve()
        self.config = (
            *("--cluster-enabled", "yes", "--cluster-port", str(self.bus_port)),
            *("--cluster-node-timeout", "1000", "--cluster-config-file", "nodes.conf"),
            # By default, all nodes refuse commands while the slots of one have no master.
            *("--cluster-require-full-coverage", "no"),
        )

    @property
    def id(self) -> str:
        """Return its name in the Cluster."""
        return self.ask("CLUSTER MYID").split("\r\n")[1]


class RedisCluster(Group):
    """Three masters, each with a third of the slots, and three replicas in their order."""

    def __init__(self) -> None:
        self.servers = self.nodes = [ClusterNode() for _ in range(6)]
        self.masters, self.replicas = self.nodes[:3], self.nodes[3:]

    @property
    def url(self) -> str:
        """Return the address for clients."""
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in self.masters)}/"

    def disable_failover(self) -> None:
        """Keep the replicas from replacing their masters."""
        for replica in self.replicas:
            replica.ask("CONFIG SET cluster-replica-no-failover yes")

    def start(self) -> None:
        super().start()
        first = self.nodes[0]
        for number, master in enumerate(self.masters):
            begin, end = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            master.ask(f"CLUSTER ADDSLOTSRANGE {begin} {end}")
        for node in self.nodes[1:]:
            node.ask(f"CLUSTER MEET {HOST} {first.port} {first.bus_port}")
        for node in self.nodes:
            node.wait_for("CLUSTER INFO", "cluster_known_nodes:6")
        for replica, master in zip(self.replicas, self.masters, strict=True):
            replica.ask(f"CLUSTER REPLICATE {master.id}")
        for node in self.nodes:
            node.wait_for("CLUSTER INFO", "cluster_state:ok")
        for replica in self.replicas:
            replica.wait_for("INFO replication", "master_link_status:up")
