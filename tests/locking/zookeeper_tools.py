"""Private ensembles, and a proxy that stands between two ends of a TCP connection."""

from __future__ import annotations

import contextlib
import itertools
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

    def __init__(
        self,
        port: int,
        *,
        listen: tuple[str, int] = (HOST, 0),
        rewrite: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        self._target, self._rewrite = port, rewrite
        self.requests, self.answers = threading.Event(), threading.Event()
        self.flow()
        self._open: list[socket.socket] = []
        self._refusing = False
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{listen[0]}:{self.port}"
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
            else:
                self._start(self._join, near)

    def _join(self, near: socket.socket) -> None:
        """Be refused no sooner than the client would be that dials again for a while."""
        deadline = time.monotonic() + 2
        while True:
            try:
                far = socket.create_connection((HOST, self._target))
                break
            except OSError:
                if time.monotonic() > deadline:
                    near.close()
                    return
                time.sleep(0.02)
        self._open += [near, far]
        self._start(self._pump, near, far, self.requests)
        self._pump(far, near, self.answers)

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                gate.wait()
                sink.sendall(data.replace(*self._rewrite) if self._rewrite[0] else data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


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

    def cut_off(self, myid: int) -> None:
        """Lose every packet between this node and the others; clients still reach it."""
        for ends, proxy in self.links:
            if myid in ends:
                proxy.hold()

    def stop(self) -> None:
        super().stop()
        for _, proxy in self.links:
            proxy.close()


def leader(ensemble: ZooKeeper) -> Any:
    """The node that leads."""
    return next(node for node in ensemble.nodes if b"Mode: leader" in node.ask(b"srvr"))
