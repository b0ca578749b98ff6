"""A ZooKeeper ensemble whose nodes can be cut off from each other, and what befalls its leader."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from devservers import HOST, ZooKeeper, ZooKeeperNode
from loadtest.faults.injectors import Fault, until
from loadtest.faults.proxy import Proxy

LeaderFault = Literal["kill", "stop", "cut off"]


class Partitioned(ZooKeeper):
    """Three nodes that reach each other only through proxies, so that one can be cut off.

    Node 1 dials node 2 at 127.1.0.2 and so on. In an election it also tells its own address, and
    would be dialled at that: the proxy puts the address there at which the other one has a proxy.
    A leader is given up after five ticks, as in ZooKeeper's sample configuration.
    """

    def __init__(self) -> None:
        super().__init__(3)
        self.links: list[tuple[set[int], Proxy]] = []
        for node, peer in itertools.permutations(self.nodes, 2):
            there, back = f"127.{node.myid}.0.{peer.myid}", f"127.{peer.myid}.0.{node.myid}"
            told = (f"{HOST}:".encode(), f"{back}:".encode())
            for port, _ in peer.peer_ports:
                proxy = Proxy(port, listen=(there, port), rewrite=told)
                self.links.append(({node.myid, peer.myid}, proxy))
            node.settings = [
                line.replace(HOST, there) if line.startswith(f"server.{peer.myid}=") else line
                for line in node.settings
            ]
        for node in self.nodes:
            node.settings[node.settings.index("syncLimit=10")] = "syncLimit=5"

    def cut_off(self, node: ZooKeeperNode) -> None:
        """Lose every packet between this node and the others; clients still reach it."""
        for ends, proxy in self.links:
            if node.myid in ends:
                proxy.hold()

    def join(self, node: ZooKeeperNode) -> None:
        """Let it hear the others again."""
        for ends, proxy in self.links:
            if node.myid in ends:
                proxy.cut()
                proxy.flow()

    def stop(self) -> None:
        super().stop()
        for _, proxy in self.links:
            proxy.close()


def leader(nodes: Sequence[ZooKeeperNode]) -> ZooKeeperNode:
    """The one of these that leads, as soon as one does; each must be able to answer."""
    return until(lambda: [one for one in nodes if _says(one, b"Mode: leader")], "a leader")[0]


def _says(node: ZooKeeperNode, what: bytes) -> bool:
    try:
        return what in node.send(b"srvr")
    except OSError:
        return False


@dataclass
class StrikeLeader(Fault):
    """The leader is killed, stopped or cut off from the others, until they have another."""

    ensemble: Partitioned
    how: LeaderFault = "kill"
    lane: str = ""
    what: str = "leader struck"

    def strike(self) -> None:
        self.old = leader(self.ensemble.nodes)
        match self.how:
            case "kill":
                self.old.kill()
            case "stop":
                self.old.pause()
            case "cut off":
                self.ensemble.cut_off(self.old)
        others = [node for node in self.ensemble.nodes if node is not self.old]
        self.fired = leader(others) is not self.old

    def heal(self) -> None:
        self.old.resume()
        self.ensemble.join(self.old)
        self.old.start()
        until(lambda: _says(self.old, b"Mode: follower"), "the old leader following")
