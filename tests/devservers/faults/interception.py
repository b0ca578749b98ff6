"""Faults that only tests inject: single messages held or lost, and a session that expires."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient

from devservers.base import injected_faults
from devservers.faults.injectors import Fault
from devservers.faults.proxy import Proxy, arriving


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


class InterceptingProxy(Proxy):
    """A proxy that holds one direction or one request, and loses replies."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.replies_to_lose = 0.0
        """How many of the next replies are lost, each with its connection."""
        self._held: list[HeldRequest] = []
        super().__init__(*args, **options)

    def close(self) -> None:
        super().close()
        for held in self._held:
            held.gate.set()

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

    def _send_request(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        waiting = (held for held in self._held if not held.is_held.is_set())
        held = next((held for held in waiting if held.containing in data), None)
        if held is None:
            super()._send_request(source, sink, data)
        else:
            _deliver_late(held, source, sink, data)

    def _send_reply(self, sink: socket.socket, data: bytes) -> None:
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            injected_faults["Proxy reply lost"] += 1
            raise ConnectionResetError  # the proxy closes both ends
        super()._send_reply(sink, data)


def _deliver_late(
    held: HeldRequest, source: socket.socket, sink: socket.socket, data: bytes
) -> None:
    injected_faults["Proxy request held"] += 1
    held.is_held.set()
    size = 0
    try:
        data += arriving(source, held.gate)
        sink.sendall(data)
        size = len(data)
    finally:
        held.finish(size)


@dataclass
class ExpireSession(Fault):
    """A ZooKeeper session that its server ends, as after a partition longer than its timeout."""

    hosts: str
    client_id: tuple[int, bytes]
    lane: str = ""
    what: str = "session expired"

    def inject(self) -> None:
        """Take over the session with a second client, and close it."""
        twin = KazooClient(self.hosts, client_id=self.client_id)
        twin.start()
        self.injected = twin.client_id[0] == self.client_id[0]
        injected_faults[self.what] += self.injected
        twin.stop()
        twin.close()

    def recover(self) -> None:
        """Do nothing: an expired session does not come back."""
