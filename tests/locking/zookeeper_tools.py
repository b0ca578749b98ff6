"""Private ensembles, and a proxy that stands between two ends of a TCP connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from loadtest.servers import HOST, ZooKeeper
from locking.backends.zookeeper import ZooKeeperBackend
from locking.handler import create

PATH = "locking.backends.zookeeper.ZooKeeperBackend"


def conf(hosts: str, **options: Any) -> dict[str, Any]:
    """An entry of LOCKS, with a short session."""
    return {"BACKEND": PATH, "LOCATION": hosts, "OPTIONS": {"SESSION_TIMEOUT": 2.0, **options}}


def connected(hosts: str, path: str = PATH, **options: Any) -> ZooKeeperBackend:
    """A backend with a session of its own."""
    backend = create("zookeeper", {**conf(hosts, **options), "BACKEND": path})
    assert isinstance(backend, ZooKeeperBackend)
    backend.probe()
    return backend


def queue(backend: ZooKeeperBackend, name: str) -> list[str]:
    """The nodes of a name, the holder's first."""
    nodes = backend._queue(backend._open(), backend._parent(name))
    return sorted(nodes, key=lambda node: node[-10:])


def elapsed(call: Callable[[], object]) -> float:
    """How long a call takes, in seconds."""
    started = time.monotonic()
    call()
    return time.monotonic() - started


class Proxy:
    """Forwards connections to a port; each direction can be held up, and all of it be cut.

    What is held up arrives once it flows again, as on a network that loses packets for a while;
    what is cut does not.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.requests, self.answers = threading.Event(), threading.Event()
        self.flow()
        self._open: list[socket.socket] = []
        self._refusing = False
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{HOST}:{self.port}"
        self._start(self._accept)

    def hold(self) -> None:
        """Lose what is sent, both ways."""
        self.requests.clear()
        self.answers.clear()

    def flow(self) -> None:
        self.requests.set()
        self.answers.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Reset the connections, with what was on its way; `refuse` new ones until `serve`."""
        self._refusing = refuse
        opened, self._open = self._open, []
        for end in opened:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def serve(self) -> None:
        self._refusing = False
        self.flow()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.flow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=run, args=args, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                near.close()
                continue
            try:
                far = socket.create_connection((HOST, self._target))
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            self._start(self._pump, near, far, self.requests)
            self._start(self._pump, far, near, self.answers)

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                gate.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Partitioned(ZooKeeper):
    """Three nodes that reach each other only through proxies, so that one can be cut off."""

    def __init__(self) -> None:
        super().__init__(3)
        self.links: dict[frozenset[int], list[Proxy]] = {}
        for node in self.nodes:
            for peer in self.nodes:
                if peer is node:
                    continue
                ports = [port for port, _ in peer.peer_ports]
                proxies = [Proxy(port) for port in ports]
                self.links.setdefault(frozenset((node.myid, peer.myid)), []).extend(proxies)
                old = f"server.{peer.myid}={HOST}:{ports[0]}:{ports[1]}"
                new = f"server.{peer.myid}={HOST}:{proxies[0].port}:{proxies[1].port}"
                node.settings[node.settings.index(old)] = new

    def cut_off(self, myid: int) -> None:
        """Lose every packet between this node and the others; clients still reach it."""
        for pair, proxies in self.links.items():
            if myid in pair:
                for proxy in proxies:
                    proxy.hold()

    def stop(self) -> None:
        super().stop()
        for proxies in self.links.values():
            for proxy in proxies:
                proxy.close()


def leader(ensemble: ZooKeeper) -> Any:
    """The node that leads."""
    return next(node for node in ensemble.nodes if b"Mode: leader" in node.ask(b"srvr"))
