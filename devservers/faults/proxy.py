"""A TCP proxy that can hold, delay, lose or cut the traffic of clients and their server."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from devservers import HOST
from devservers.base import injected_faults

HOLD_POLL = 0.005
"""Seconds between two reads from a connection whose traffic is held."""


class Proxy:
    """Forwards connections to a port; each direction can be held, and all connections be cut.

    Held traffic arrives after `resume`, as on a network that loses packets for a while, also if the
    sender has closed its connection by then; cut traffic is lost.
    """

    delay = 0.0
    """Seconds by which each message is delayed."""
    commit_delay = 0.0
    """Seconds by which the next COMMIT of SQL is delayed, once."""
    late_commits = 0
    losing: re.Pattern[bytes] | None = None
    """The next request that matches is forwarded, but its reply is lost, with its connection."""
    lost_replies = 0

    def __init__(
        self,
        port: int,
        *,
        listen: tuple[str, int] = (HOST, 0),
        rewrite: tuple[bytes, bytes] = (b"", b""),
        connect_timeout: float = 2.0,
    ) -> None:
        self._target, self._rewrite = port, rewrite
        self._connect_timeout = connect_timeout
        self._requests, self._replies = threading.Event(), threading.Event()
        self.resume()
        self._open: list[socket.socket] = []
        self._is_refusing = False
        self._loser: socket.socket | None = None
        """The client whose next reply is lost."""
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{listen[0]}:{self.port}"
        self._start(self._accept)

    @property
    def connections(self) -> int:
        """Return the number of open connections of clients."""
        return len(self._open) // 2

    def hold(self) -> None:
        """Hold traffic in both directions."""
        injected_faults["Proxy packets held"] += 1
        self._requests.clear()
        self._replies.clear()

    def resume(self) -> None:
        """Release what is held."""
        self._requests.set()
        self._replies.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Reset all connections with their traffic; `refuse` new ones until `accept`."""
        injected_faults["Proxy connections cut"] += 1
        self._is_refusing = refuse
        self.close_connections()

    def close_connections(self) -> None:
        """Reset all present connections without counting it as a fault."""
        for end in list(self._open):  # a client that connects again meanwhile is not cut again
            with contextlib.suppress(ValueError):
                self._open.remove(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def lose(self) -> None:
        """Lose what is held, and forward again without delay."""
        self.delay = 0.0
        self.cut()
        self.resume()

    def redirect(self, port: int) -> None:
        """Forward to another server from now on, and cut the connections to the first."""
        injected_faults["Proxy address moved"] += 1
        self._target = port
        self._is_refusing = False
        self.close_connections()

    def accept(self) -> None:
        """Accept connections again."""
        self._is_refusing = False
        self.resume()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._is_refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close_connections()
        self.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self, run: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_refusing:
                near.close()
            else:
                self._start(self._join, near)

    def _join(self, near: socket.socket) -> None:
        """Connect to the server; retry for `connect_timeout` seconds while it is down."""
        deadline = time.monotonic() + self._connect_timeout
        while True:
            try:
                far = socket.create_connection((HOST, self._target))
                break
            except OSError:
                if time.monotonic() > deadline:
                    near.close()
                    return
                time.sleep(0.02)
        self._open.extend((near, far))
        if self._is_refusing:  # cut while it was connecting
            self.close_connections()
        back = self._start(self._pump, near, far, self._requests)
        self._pump(far, near, self._replies)
        back.join()
        for end in (near, far):
            end.close()
            with contextlib.suppress(ValueError):  # they were cut
                self._open.remove(end)

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        is_request = gate is not self._replies
        # ValueError: the socket was closed by this process.
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                data += arriving(source, gate)
                time.sleep(self.delay)
                data = data.replace(*self._rewrite) if self._rewrite[0] else data
                if is_request:
                    self._send_request(source, sink, data)
                else:
                    self._send_reply(sink, data)
            if is_request and not data:  # the server may still be at work for the client
                sink.shutdown(socket.SHUT_WR)
                return
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _send_request(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        if self.commit_delay and b"COMMIT" in data:
            delay, self.commit_delay = self.commit_delay, 0.0
            self.late_commits += 1
            time.sleep(delay)
        if self.losing and self.losing.search(data):
            self.losing, self._loser = None, source
        sink.sendall(data)

    def _send_reply(self, sink: socket.socket, data: bytes) -> None:
        if sink is self._loser:
            self._loser = None
            self.lost_replies += 1
            injected_faults["Proxy reply lost"] += 1
            raise ConnectionResetError  # both ends are closed
        with contextlib.suppress(OSError):  # a reply to a client that has gone
            sink.sendall(data)


def arriving(source: socket.socket, gate: threading.Event) -> bytes:
    """Wait until the gate is open; return what arrives meanwhile.

    A sender that closes its connection would otherwise withdraw what is not read yet.
    """
    arrived = bytearray()
    pause: float | None = HOLD_POLL
    while not gate.wait(pause):
        pause = HOLD_POLL
        if select.select([source], [], [], 0)[0]:
            more = b""
            with contextlib.suppress(OSError):  # the sender has reset the connection
                more = source.recv(65536)
            arrived += more
            pause = 0.0 if more else None
    return bytes(arrived)
