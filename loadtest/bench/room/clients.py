"""Clients of a waiting room: each polls the status, buys at its turn, or learns of "sold out"."""

import re
import select
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from devservers import HOST
from loadtest.load.http.client import Connection

_STATUS = re.compile(rb'"state": ?"(\w+)".*?"serving": ?(\d+)', re.DOTALL)
MAX_CONNECTIONS = 1000
"""Of all clients, who share them: browsers behind a proxy that keeps its connections."""


@dataclass
class Waited:
    """The outcome; times are monotonic seconds."""

    waiting: set[int]
    """Clients that neither had their turn nor saw "sold out"."""
    began: float
    informed: float = 0.0
    """When the last of them did."""
    states: Counter[str] = field(default_factory=Counter)
    """The states that the polls saw."""
    sent: dict[int, float] = field(default_factory=dict)
    """When each client sent its form for the first time."""
    bought: dict[int, float] = field(default_factory=dict)
    """When each client had bought."""
    refusals: Counter[str] = field(default_factory=Counter)
    """The kinds of the other replies to forms; the client polls, then sends its form again."""


class _Connection(Connection):
    client = 0


class Clients:
    """The clients with the positions 1 to `size`; the first send one of the forms at their turn."""

    def __init__(self, port: int, poll: bytes, forms: Sequence[bytes], *, size: int) -> None:
        self._where = (HOST, port)
        self._poll = poll
        self._forms = forms
        self._size = size
        self._idle: deque[_Connection] = deque()
        self._open: dict[int, _Connection] = {}
        self._events = select.epoll()

    def wait(self, *, interval: float, seconds: float) -> Waited:
        """Poll once per client in `interval` seconds, until all had their turn or saw "sold out".

        The polls are due at fixed times, so that a slow server does not reduce the load.
        """
        found = Waited(set(range(self._size)), time.monotonic())
        due, gap, client = found.began, interval / self._size, 0
        end = found.began + seconds
        with self._events:
            try:
                while (found.waiting and due < end) or len(self._idle) < len(self._open):
                    while due <= min(time.monotonic(), end) and self._is_free():
                        if client in found.waiting:
                            self._send(client, self._poll)
                        due, client = due + gap, (client + 1) % self._size
                    for file, _ in self._events.poll(max(0.001, due - time.monotonic())):
                        self._receive(self._open[file], found)
            finally:
                for connection in self._open.values():
                    connection.socket.close()
        return found

    def _is_free(self) -> bool:
        return bool(self._idle) or len(self._open) < MAX_CONNECTIONS

    def _send(self, client: int, request: bytes) -> None:
        if not self._idle:
            connection = _Connection(self._where, 0.0)
            self._open[connection.socket.fileno()] = connection
            self._events.register(connection.socket, select.EPOLLIN)
            self._idle.append(connection)
        connection = self._idle.popleft()
        connection.client = client
        connection.send(request)

    def _receive(self, connection: _Connection, found: Waited) -> None:
        """Count a reply, and send the form of a client that has its turn."""
        if (kind := connection.receive()) is None:
            return
        now, client = time.monotonic(), connection.client
        if connection.closes:
            del self._open[connection.socket.fileno()]
            connection.socket.close()
        else:
            self._idle.append(connection)
        if connection.request is not self._poll and kind == "ok":
            found.bought[client] = now
        elif connection.request is not self._poll:
            found.refusals[kind] += 1
            found.waiting.add(client)
        elif status := _STATUS.search(connection.body):
            state, serving = status[1].decode(), int(status[2])
            found.states[state] += 1
            if client in found.waiting and (client < serving or state == "sold_out"):
                found.waiting.remove(client)
                found.informed = now
                if client < min(serving, len(self._forms)):
                    found.sent.setdefault(client, now)
                    self._send(client, self._forms[client])
