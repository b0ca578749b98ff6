"""An HTTP/1.1 load client that costs little CPU: prebuilt requests, keep-alive, one epoll loop."""

import re
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from typing import NamedTuple

from devservers import HOST

RESPONSE_TIMEOUT = 30.0
DISCONNECTED = "hung up"
"""The kind of a request whose connection ended without a reply."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_ERROR = re.compile(rb'"error": "(\w+)"')


class Reply(NamedTuple):
    """The kind of a reply: "ok", the shop's error code, or the status code."""

    kind: str
    sent: float
    received: float


class Replies(NamedTuple):
    """All replies; times are monotonic seconds."""

    replies: list[Reply]
    began: float
    ended: float
    """When the time was up, or all requests had their replies."""
    cpu: float
    """CPU seconds of this process."""


def send_requests(
    port: int,
    requests: Iterable[bytes],
    *,
    connections: int,
    seconds: float,
    host: str = HOST,
    on_reply: Callable[[bytes, str], object] = lambda request, kind: None,
    hang_ups: bool = False,
) -> Replies:
    """Send the requests; each connection sends its next one after a reply.

    After `seconds` only the replies to sent requests are awaited. `on_reply` is called with each
    request and the kind of its reply. `hang_ups`: the server may be restarted meanwhile.
    """
    waiting = iter(requests)
    connected: dict[int, Connection] = {}
    replies: list[Reply] = []
    cpu = time.process_time()
    began = time.monotonic()
    ended = began + seconds

    with select.epoll() as poll, ExitStack() as stack:
        stack.callback(_close_all, connected)

        def send(request: bytes, patience: float = 0.0) -> None:
            connection = Connection((host, port), patience)
            connected[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
            connection.send(request)

        # Idle connections would occupy threads of the server.
        for request in islice(waiting, connections):
            send(request)
        while connected:
            events = poll.poll(RESPONSE_TIMEOUT)
            if not events:
                missing = f"{len(connected)} requests got no reply"
                raise TimeoutError(f"{missing} in {RESPONSE_TIMEOUT:g} s")
            for number, _ in events:
                connection = connected[number]
                try:
                    kind = connection.receive()
                except OSError:
                    if not hang_ups:
                        raise
                    kind, connection.closes = DISCONNECTED, True
                if kind is None:
                    continue
                received = time.monotonic()
                replies.append(Reply(kind, connection.sent, received))
                on_reply(connection.request, kind)
                following = next(waiting, None) if received < ended else None
                if following and not connection.closes:
                    connection.send(following)
                    continue
                connected.pop(number).socket.close()
                if following:
                    send(following, RESPONSE_TIMEOUT if hang_ups else 0.0)
    last = replies[-1].received if replies else began
    return Replies(replies, began, min(ended, last), time.process_time() - cpu)


def paced(requests: Iterable[bytes], per_second: float, *, at_once: int = 1) -> Iterator[bytes]:
    """Yield the requests at this rate at most, `at_once` of them together."""
    due = time.monotonic()
    for number, request in enumerate(requests):
        if number % at_once == 0:
            time.sleep(max(0.0, due - time.monotonic()))
            due += at_once / per_second
        yield request


def _close_all(connected: "dict[int, Connection]") -> None:
    for connection in connected.values():
        connection.socket.close()


def _connect(where: tuple[str, int], patience: float) -> socket.socket:
    """Connect; retry for `patience` seconds until the server listens again."""
    deadline = time.monotonic() + patience
    while True:
        try:
            # A connection to a container that is starting may be lost.
            connected = socket.create_connection(where, 3.0 if patience else RESPONSE_TIMEOUT)
            connected.settimeout(RESPONSE_TIMEOUT)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.02)


class Connection:
    """A connection, the bytes of a reply received so far, and what the last reply was."""

    def __init__(self, where: tuple[str, int], patience: float) -> None:
        self._where = where
        self.socket = _connect(where, patience)
        self.request = self.received = self.status = self.body = b""
        self.sent = 0.0
        self.size = 0
        self.closes = False

    def send(self, request: bytes) -> None:
        """Send a request; `receive` reports a failure."""
        self.request = request
        self.sent = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(request)

    def receive(self) -> str | None:
        """Return the kind of the reply once it is complete, otherwise None."""
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError(f"the server closed the connection after {self.received!r}")
        self.received += more
        head, gap, body = self.received.partition(b"\r\n\r\n")
        if not gap:
            return None
        length = _LENGTH.search(head)
        if length is None and not _CHUNKED.search(head):
            raise ConnectionError(f"a reply without Content-Length: {head!r}")
        if len(body) < int(length[1]) if length else not body.endswith(_LAST_CHUNK):
            return None
        self.size, self.received, self.body = len(self.received), b"", body
        self.closes = _CLOSES.search(head) is not None
        self.status = head[9:12]
        if self.status < b"400":
            return "ok"
        error = _ERROR.search(body)
        return sys.intern((error[1] if error else self.status).decode())

    def exchange(self, request: bytes) -> str:
        """Send a request, on a new connection if the server closes this one; return the kind."""
        if self.closes:
            self.close()
            self.socket, self.closes = _connect(self._where, 0.0), False
        self.send(request)
        while (kind := self.receive()) is None:
            pass
        return kind

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
