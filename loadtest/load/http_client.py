"""A crowd over HTTP/1.1 that costs little: prebuilt requests, kept connections, one epoll loop."""

import re
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import islice
from typing import NamedTuple

from devservers import HOST

PATIENCE = 30.0
"""Seconds of silence after which the server is given up."""
HUNG_UP = "hung up"
"""The kind of a request whose connection ended without an answer."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_ERROR = re.compile(rb'"error": "(\w+)"')


class Answer(NamedTuple):
    """What one request was told: "ok", the shop's code of a refusal, or the bare status."""

    kind: str
    sent: float
    heard: float


class Heard(NamedTuple):
    """All answers of a crowd; times are monotonic seconds."""

    answers: list[Answer]
    began: float
    ended: float
    """When its time was over, or all requests were answered."""
    cpu: float
    """Seconds that this took of this process."""


def drive(
    port: int,
    requests: Iterable[bytes],
    *,
    connections: int,
    seconds: float,
    host: str = HOST,
    told: Callable[[bytes, str], object] = lambda request, kind: None,
    hang_ups: bool = False,
) -> Heard:
    """Send the requests, each connection its next one when the last is answered.

    After `seconds` nothing new is sent, and what was sent is waited for. `told` hears what each
    request was told, at once. `hang_ups`: the server may be restarted meanwhile.
    """
    waiting = iter(requests)
    lines: dict[int, _Line] = {}
    answers: list[Answer] = []
    cpu = time.process_time()
    began = time.monotonic()
    ended = began + seconds

    with select.epoll() as poll, ExitStack() as stack:
        stack.callback(_close_all, lines)
        # A connection that says nothing would keep a thread of the server waiting for it.
        for request in islice(waiting, connections):
            _open((host, port), lines, poll).send(request)
        while lines:
            events = poll.poll(PATIENCE)
            if not events:
                raise TimeoutError(f"{len(lines)} requests are not answered in {PATIENCE:g} s")
            for number, _ in events:
                line = lines[number]
                try:
                    kind = line.receive()
                except OSError:
                    if not hang_ups:
                        raise
                    kind, line.closes = HUNG_UP, True
                if kind is None:
                    continue
                heard = time.monotonic()
                answers.append(Answer(kind, line.sent, heard))
                told(line.request, kind)
                following = next(waiting, None) if heard < ended else None
                if following is None or line.closes:
                    lines.pop(number).socket.close()
                    opened = _insist if hang_ups else _open
                    line = opened((host, port), lines, poll) if following else line
                if following:
                    line.send(following)
    return Heard(answers, began, min(ended, answers[-1].heard), time.process_time() - cpu)


def _close_all(lines: "dict[int, _Line]") -> None:
    for line in lines.values():
        line.socket.close()


def _open(where: tuple[str, int], lines: "dict[int, _Line]", poll: select.epoll) -> "_Line":
    line = _Line(where)
    lines[line.socket.fileno()] = line
    poll.register(line.socket, select.EPOLLIN)
    return line


def _insist(where: tuple[str, int], lines: "dict[int, _Line]", poll: select.epoll) -> "_Line":
    """Until the server listens again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _open(where, lines, poll)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class _Line:
    """A connection and what it has said so far."""

    def __init__(self, where: tuple[str, int]) -> None:
        self.socket = socket.create_connection(where, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = self.said = b""
        self.sent = 0.0
        self.closes = False

    def send(self, request: bytes) -> None:
        self.request = request
        self.sent = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` will hear of it
            self.socket.sendall(request)

    def receive(self) -> str | None:
        """The kind of the answer, once all of it is there."""
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError(f"the server hung up after {self.said!r}")
        self.said += more
        head, gap, body = self.said.partition(b"\r\n\r\n")
        if not gap:
            return None
        length = _LENGTH.search(head)
        if length is None:
            raise ConnectionError(f"an answer without its length: {head!r}")
        if len(body) < int(length[1]):
            return None
        self.said = b""
        self.closes = _CLOSES.search(head) is not None
        status = head[9:12]
        if status < b"400":
            return "ok"
        error = _ERROR.search(body)
        return sys.intern((error[1] if error else status).decode())
