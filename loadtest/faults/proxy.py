"""A TCP proxy that can hold, delay, lose or cut the traffic between a client and its server."""

from __future__ import annotations

import contextlib
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


class HeldRequest:
    """A request that a proxy holds until `deliver`, even if its client gives up meanwhile."""

    def __init__(self, containing: bytes) -> None:
        self.containing = containing
        self.is_held = threading.Event()
        self.gate, self._is_sent = threading.Event(), threading.Event()
        self.bytes_delivered = 0
        """Bytes that the server's connection accepted; 0 if the server has closed it."""

    def deliver(self) -> int:
        """Send the request to the server now; return the bytes that its connection accepted."""
        self.gate.set()
        self._is_sent.wait()
        return self.bytes_delivered

    def finish(self, size: int) -> None:
        """Record the end of the delivery."""
        self.bytes_delivered = size
        injected_faults["Proxy request delivered late"] += size > 0
        self._is_sent.set()


class Proxy:
    """Forwards connections to a port; each direction can be held, and all connections be cut.

    Held traffic arrives after `resume`, as on a network that loses packets for a while, also if the
    sender has closed its connection by then; cut traffic is lost.
    """

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
        self.delay = 0.0
        """Seconds by which each message is delayed."""
        self.replies_to_lose = 0.0
        """How many of the next replies are lost, each with its connection."""
        self.request_count = 0
        """Requests so far; those that arrive together count once."""
        self._held: list[HeldRequest] = []
        self.resume()
        self._open: list[socket.socket] = []
        self._is_refusing = False
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{listen[0]}:{self.port}"
        self._start(self._accept)

    def hold(self) -> None:
        """Hold traffic in both directions."""
        injected_faults["Proxy packets held"] += 1
        self.stop_traffic()

    def hold_requests(self) -> None:
        """Hold what clients send."""
        injected_faults["Proxy requests held"] += 1
        self._requests.clear()

    def hold_replies(self) -> None:
        """Hold what the server sends."""
        injected_faults["Proxy replies held"] += 1
        self._replies.clear()

    def hold_open_connections(self) -> threading.Event:
        """Hold requests on the open connections only; setting the returned event releases them."""
        injected_faults["Proxy requests held"] += 1
        held, self._requests = self._requests, threading.Event()
        self._requests.set()
        held.clear()
        return held

    def hold_request(self, containing: bytes) -> HeldRequest:
        """Hold the next request that contains these bytes, with what follows it."""
        held = HeldRequest(containing)
        self._held.append(held)
        return held

    def stop_traffic(self) -> None:
        """Hold traffic in both directions without counting it as a fault."""
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
        """Reset all connections without counting it as a fault."""
        opened, self._open = self._open, []
        for end in opened:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

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
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close_connections()
        self.resume()
        for held in self._held:
            held.gate.set()

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
        self._open += [near, far]
        back = self._start(self._pump, near, far, self._requests)
        self._pump(far, near, self._replies)
        back.join()
        for end in (near, far):
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        is_request = gate is not self._replies
        # ValueError: the socket was closed by this process.
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                self.request_count += is_request
                data += _arriving(source, gate)
                if not is_request and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    injected_faults["Proxy reply lost"] += 1
                    break
                time.sleep(self.delay)
                data = data.replace(*self._rewrite) if self._rewrite[0] else data
                held = self._held_request(data) if is_request else None
                if held is not None:
                    _deliver_late(held, source, sink, data)
                elif is_request:
                    sink.sendall(data)
                else:
                    with contextlib.suppress(OSError):  # a reply to a client that has gone
                        sink.sendall(data)
            if is_request and not data:  # the server may still be at work for the client
                sink.shutdown(socket.SHUT_WR)
                return
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _held_request(self, data: bytes) -> HeldRequest | None:
        waiting = (held for held in self._held if not held.is_held.is_set())
        return next((held for held in waiting if held.containing in data), None)


def _deliver_late(
    held: HeldRequest, source: socket.socket, sink: socket.socket, data: bytes
) -> None:
    injected_faults["Proxy request held"] += 1
    held.is_held.set()
    size = 0
    try:
        data += _arriving(source, held.gate)
        sink.sendall(data)
        size = len(data)
    finally:
        held.finish(size)


def _arriving(source: socket.socket, gate: threading.Event) -> bytes:
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
