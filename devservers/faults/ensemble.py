"""A ZooKeeper ensemble with separable nodes, and faults of its leader."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from devservers import HOST, ZooKeeper, ZooKeeperNode
from devservers.faults.injectors import Fault
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until

LeaderFailure = Literal["kill", "stop", "cut off"]


class Partitioned(ZooKeeper):
    """Three nodes that reach each other only through proxies, so that one can be cut off.

    Node 1 connects to node 2 at 127.1.0.2 and so on. In an election a node also sends its own
    address, and would be contacted there: the proxy replaces it by the address of another proxy.
    A leader is abandoned after five ticks, as in ZooKeeper's sample configuration.
    """

    def __init__(self) -> None:
        super().__init__(3)
        self.links: list[tuple[set[int], Proxy]] = []
        for node, peer in itertools.permutations(self.nodes, 2):
            there, back = f"127.{node.myid}.0.{peer.myid}", f"127.{peer.myid}.0.{node.myid}"
            replacement = (f"{HOST}:".encode(), f"{back}:".encode())
            for port in peer.peer_ports:
                proxy = Proxy(port, listen=(there, port), rewrite=replacement)
                self.links.append(({node.myid, peer.myid}, proxy))
            node.settings = [
                line.replace(HOST, there) if line.startswith(f"server.{peer.myid}=") else line
                for line in node.settings
            ]
        for node in self.nodes:
            node.settings[node.settings.index("syncLimit=10")] = "syncLimit=5"

    def cut_off(self, node: ZooKeeperNode) -> None:
        """Hold every packet between this node and the others; clients still reach it."""
        for ends, proxy in self.links:
            if node.myid in ends:
                proxy.hold()

    def join(self, node: ZooKeeperNode) -> None:
        """Reconnect this node with the others."""
        for ends, proxy in self.links:
            if node.myid in ends:
                proxy.close_connections()
                proxy.resume()

    def stop(self) -> None:
        """Stop the nodes and the proxies."""
        super().stop()
        for _, proxy in self.links:
            proxy.close()


def leader(nodes: Sequence[ZooKeeperNode]) -> ZooKeeperNode:
    """Return the leader as soon as there is one; each of these nodes must be able to respond."""
    return until(lambda: [node for node in nodes if _is(node, b"leader")], "a leader")[0]


def _is(node: ZooKeeperNode, mode: bytes) -> bool:
    try:
        return b"Mode: " + mode in node.send(b"srvr")
    except OSError:
        return False


@dataclass
class FailLeader(Fault):
    """The leader is killed, stopped or cut off, and the others have elected another one."""

    ensemble: Partitioned
    how: LeaderFailure = "kill"

    def inject(self) -> None:
        """Fail the leader, and wait for its successor."""
        self.old = leader(self.ensemble.nodes)
        match self.how:
            case "kill":
                self.old.kill()
            case "stop":
                self.old.pause()
            case "cut off":
                self.ensemble.cut_off(self.old)
        others = [node for node in self.ensemble.nodes if node is not self.old]
        self.new = leader(others)
        self.injected = True
        self.proof = f"node {self.old.myid} led, then node {self.new.myid}"

    def recover(self) -> None:
        """Bring the old leader back as a follower."""
        self.old.resume()
        self.ensemble.join(self.old)
        self.old.start()
        until(lambda: _is(self.old, b"follower"), "the old leader following")
