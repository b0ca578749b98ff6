"""What the tests of RedLock share: five masters of their own, to look into and to hurt."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from loadtest.faults import until
from loadtest.servers import Redis, start_all, stop_all
from locking.backends.base import Claim, Grant
from locking.backends.redlock import RedLockBackend
from locking.lease import new_owner

NAME = "redlock-test"
KEY = f"redlock:{NAME}"


class Masters:
    """Five masters and the clients that a test makes for them; all of it ends with the test."""

    def __init__(self) -> None:
        self.servers = [Redis() for _ in range(5)]
        self.urls = [server.url for server in self.servers]
        self._backends: list[RedLockBackend] = []

    def client(self, *, urls: list[str] | None = None, **options: Any) -> RedLockBackend:
        """A backend as another process would have it."""
        backend = RedLockBackend("test", location=urls or self.urls, options=options)
        self._backends.append(backend)
        return backend

    def value(self, number: int, key: str = KEY) -> str | None:
        """What one master keeps under a key, asked past the backend."""
        with redis.Redis.from_url(self.servers[number].url, decode_responses=True) as direct:
            kept: str | None = direct.get(key)
            return kept

    def values(self, key: str = KEY) -> list[str | None]:
        """What each master keeps under a key."""
        return [self.value(number, key) for number in range(5)]

    def plant(self, number: int, value: str = "somebody else", key: str = KEY) -> None:
        """Let one master believe that somebody has the lock."""
        with redis.Redis.from_url(self.servers[number].url) as direct:
            direct.set(key, value)

    def uproot(self, number: int, key: str = KEY) -> None:
        """Let it forget."""
        with redis.Redis.from_url(self.servers[number].url) as direct:
            direct.delete(key)

    def restart_empty(self, number: int) -> None:
        """A crash without persistence."""
        self.servers[number].kill()
        self.servers[number].start()

    def stop(self) -> None:
        for server in self.servers:
            with suppress(ProcessLookupError):
                server.resume()
        for backend in self._backends:
            backend.close()
        stop_all(self.servers)


@pytest.fixture
def masters() -> Iterator[Masters]:
    five = Masters()
    start_all(five.servers)
    yield five
    five.stop()


def claim(ttl: float = 60.0) -> Claim:
    """A new claim on NAME; its ttl outlasts any test, so that only an undoing frees a key."""
    return Claim(name=NAME, owner=new_owner(), ttl=ttl)


def take(backend: RedLockBackend, ttl: float = 60.0, timeout: float = 5.0) -> tuple[Claim, Grant]:
    """A grant; fails the test when there is none."""
    asked = claim(ttl)
    grant = backend.acquire(asked, timeout)
    assert grant is not None
    return asked, grant


def connected(backend: RedLockBackend) -> RedLockBackend:
    """The same, once it has a connection to every master that can be had at once by a claim."""

    def all_five() -> bool:
        backend.probe()
        return len(backend._idle[-1].voters()) == 5

    until(all_five, "five connections")
    return backend


class Proxy:
    """Stands before one master and does to what passes what `mode` says.

    "pass"; "hold": what clients send waits, on that connection for good, until `let_go`; "cut":
    the master gets it, and the connection ends when its answer comes.
    """

    def __init__(self, url: str) -> None:
        self.mode = "pass"
        self._target = (urlsplit(url).hostname, urlsplit(url).port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}/0"
        self._sockets: list[socket.socket] = [self._server]
        self._gate = threading.Event()
        self.holds = threading.Event()
        """Set once something is held."""
        self._threads: list[threading.Thread] = []
        self._thread(self._accept)

    def let_go(self) -> None:
        """Deliver what was held."""
        self._gate.set()

    def close(self) -> None:
        self._gate.set()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        until(lambda: not any(t.is_alive() for t in self._threads), "the proxy ending")
        for one in self._sockets:
            one.close()

    def _thread(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                master = socket.create_connection(self._target)
                self._sockets += [client, master]
                self._thread(self._forward, client, master)
                self._thread(self._answer, master, client)

    def _forward(self, client: socket.socket, master: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.mode == "hold":
                    self.holds.set()
                    while more := client.recv(65536):  # until the client gives up
                        data += more
                    self._gate.wait()
                master.sendall(data)

    def _answer(self, master: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := master.recv(65536):
                if self.mode == "cut":
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


def elapsed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.monotonic()
    call()
    return time.monotonic() - started
