"""One connection to a Redis or Valkey server, without redis-py's command layer.

redis-py opens the connection (address, TLS, password, database). After that a command is one
`sendall` and one `recv`, which halves the time of a lock. RESP3 lets a subscribed connection send
commands too, so a waiter needs no second connection and no thread.

Every error of the client library, the network or the server is raised as LockUnavailable with its
cause, within the connection's `timeout` in seconds.
"""

from __future__ import annotations

import hashlib
import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking.backends.circuit_breaker import CircuitBreaker
from locking.exceptions import LockUnavailable

FRESH_SECONDS = 0.01
"""An idle connection is assumed to be open for this long after its last use."""

READ_SIZE = 4096

MINIMAL_HANDSHAKE: dict[str, Any] = {"protocol": 2, "driver_info": None}
"""redis-py otherwise sends four commands before the first and waits for each reply."""

NO_REPLY: Any = object()
"""Returned by `Connection.next_reply` while no whole reply has arrived."""

BROKEN = (OSError, EOFError, ValueError, hiredis.HiredisError)
"""Errors of the network or the protocol."""

Undo = Callable[[], bytes] | None

_LUA = Path(__file__).parents[1] / "lua"


class Disconnected(LockUnavailable):
    """The connection broke or no reply came in time: a command may or may not have run."""


class Refused(LockUnavailable):
    """The server replied with an error."""


class Late(TimeoutError):
    """No reply within the limit of a request, which says nothing about the server."""


OTHER_SERVER = ("READONLY", "LOADING", "MASTERDOWN")
"""Errors after which a new connection may reach another server."""


def may_repeat(error: LockUnavailable) -> bool:
    """Return True if a request that failed may be sent again on a new connection.

    Not after a timeout, because the first one may still arrive.
    """
    if isinstance(error, Refused):
        return str(error.__cause__).startswith(OTHER_SERVER)
    return not is_timeout(error)


def is_timeout(error: BaseException | None) -> bool:
    """Return True if no reply came in time; an error reply or a refused connection is a reply."""
    return isinstance(error, redis.TimeoutError | TimeoutError | BlockingIOError) or (
        error is not None and is_timeout(error.__cause__)
    )


class Script:
    """A Lua script, joined from files of `lua/`; called by its hash."""

    def __init__(self, *files: str) -> None:
        self.name = Path(files[-1]).stem
        self.source = "\n".join((_LUA / file).read_text() for file in files)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def pack(self, keys: Sequence[str], args: Iterable[str] = (), *, whole: bool = False) -> bytes:
        """Return the command that runs it: EVALSHA, or EVAL with the `whole` source."""
        head = ("EVAL", self.source) if whole else ("EVALSHA", self.sha)
        command = *head, str(len(keys)), *keys, *args
        return hiredis.pack_command(command)  # type: ignore[no-any-return, arg-type]


def pack(*command: str) -> bytes:
    """Return one command as the bytes to send."""
    return hiredis.pack_command(command)  # type: ignore[no-any-return, arg-type]


def milliseconds(seconds: float) -> str:
    """Return a time as an argument for Redis, rounded up."""
    return str(math.ceil(seconds * 1000))


class Connection:
    """One connection, subscribed to `channel` if one is given.

    An exception during a request closes it, since the next reply could belong to that request. Not
    thread-safe, except for `interrupt`.
    """

    close_on: type[BaseException] = BaseException
    redirected = False
    """It was opened because another server had refused a request, and not after a lost reply."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 1.0,
        connect_timeout: float = 1.0,
        channel: str = "",
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self.url = url
        self.timeout = timeout
        self.channel = channel
        self.closed = False
        self.idle_since = 0.0
        self._breaker = breaker
        self._reader = hiredis.Reader(
            encoding="utf-8", errors="surrogateescape", notEnoughData=NO_REPLY
        )
        try:
            parts: Any = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
            parts |= MINIMAL_HANDSHAKE | {"retry": Retry(NoBackoff(), 0)}
            parts |= {"socket_timeout": timeout, "socket_connect_timeout": connect_timeout}
            self._connection = parts.pop("connection_class", redis.Connection)(**parts)
            self._connection.connect()
        except (redis.RedisError, OSError, ValueError) as error:
            self._report_timeout(error)
            raise Disconnected(f"Cannot connect to Redis: {error}") from error
        self.socket: socket.socket = self._connection._sock  # redis-py has no public accessor
        if not isinstance(self.socket, ssl.SSLSocket):
            # Time limits kept by the kernel save a poll before each send and receive.
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self.socket.settimeout(None)
        self._waits = True
        self._pending = getattr(self.socket, "pending", int)  # what TLS has already decoded
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self.hello_pending = bool(channel)
        """The reply to HELLO is read together with the first command's."""
        if channel:
            self.send(pack("HELLO", "3") + pack("SUBSCRIBE", channel))
        else:
            self.command("HELLO", "3")

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self.socket.fileno()

    def send(self, packed: bytes) -> None:
        """Send commands; the server replies to each, in order."""
        try:
            self.socket.sendall(packed)
        except self.close_on as error:
            self._fail(error)
            raise

    def set_nonblocking(self) -> None:
        """Let `receive` read what has arrived, and not wait."""
        self.socket.setblocking(False)
        self._waits = False

    def receive(self) -> None:
        """Read what has arrived, or what arrives first within the timeout."""
        try:
            data = self.socket.recv(READ_SIZE)
            while data and self._pending():
                data += self.socket.recv(READ_SIZE)
            if not data:
                raise EOFError("the server closed it")
            self._reader.feed(data)
        except self.close_on as error:
            if not self._waits and isinstance(error, BlockingIOError | ssl.SSLWantReadError):
                return
            self._fail(error)
            raise

    def next_reply(self) -> Any:
        """Return the next reply or push that was read, else NO_REPLY. Errors are returned."""
        try:
            return self._reader.gets()
        except self.close_on as error:
            self._fail(error)
            raise

    def wait_for_push(self, until: float) -> list[Any] | None:
        """Return the next push, or None when none came until that monotonic time."""
        while True:
            item = self.next_reply()
            if isinstance(item, hiredis.PushNotification):
                return list(item)
            if item is NO_REPLY:
                left = until - time.monotonic()
                if left <= 0 or not self._readable(left):
                    return None
                self.receive()

    def is_reusable(self) -> bool:
        """Return True if the server has not closed it. Drops pushes that arrived meanwhile."""
        if time.monotonic() - self.idle_since < FRESH_SECONDS:
            return True
        try:
            while self._readable(0):
                self.receive()
                while self.next_reply() is not NO_REPLY:
                    pass
        except LockUnavailable:
            return False
        return True

    def _readable(self, seconds: float) -> bool:
        if self._pending():
            return True
        try:
            return bool(self._poll.poll(seconds * 1000))
        except BaseException as error:
            self._fail(error)
            raise

    def command(self, *command: str) -> Any:
        """Send one command and return its reply."""
        return self.request(pack(*command))

    def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Iterable[str] = (),
        undo: Undo = None,
        limit: float = math.inf,
    ) -> Any:
        """Run a script, and send its source if the server does not have it; see `request`."""
        try:
            return self.request(script.pack(keys, args), undo, limit)
        except Refused:
            if self.closed:
                raise
        return self.request(script.pack(keys, args, whole=True), undo, limit)

    def request(self, packed: bytes, undo: Undo = None, limit: float = math.inf) -> Any:
        """Send a command and return its reply. Drops pushes that arrive before it.

        The reply must begin within `limit` seconds, if that is less than the timeout. The command
        may still arrive after that, or after the exception of a signal handler: the command that
        `undo` returns is then sent behind it.
        """
        reader = self._reader
        try:
            self.socket.sendall(packed)
            while True:
                item = reader.gets()
                if item is NO_REPLY:
                    if limit < self.timeout and not self._readable(limit):
                        raise Late(f"it did not reply within {limit:g} s")
                    data = self.socket.recv(READ_SIZE)
                    if not data:
                        raise EOFError("the server closed it")
                    reader.feed(data)
                elif self.hello_pending and not isinstance(item, hiredis.ReplyError):
                    self.hello_pending = False
                elif not isinstance(item, hiredis.PushNotification):
                    break
        except BaseException as error:
            if undo and (is_timeout(error) or not isinstance(error, BROKEN)):
                self.send_and_close(undo())
            self._fail(error)
            raise
        if isinstance(item, hiredis.ReplyError):
            # After READONLY or LOADING, a new connection may reach another server.
            if not str(item).startswith("NOSCRIPT"):
                self.close()
            raise Refused(f"Redis returned an error: {item}") from item
        return item

    def interrupt(self) -> None:
        """End the wait of another thread; this closes the connection."""
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RD)

    def send_and_close(self, packed: bytes) -> None:
        """Send a last command, whose reply is not read. The server reads it when it responds."""
        with suppress(OSError):
            self.socket.sendall(packed)
        self.close()

    def close(self) -> None:
        """Close the connection; in a forked child only the child's copy of the socket."""
        self.closed = True
        self._connection.disconnect()

    abandon = close

    def broken(self, error: BaseException) -> Disconnected:
        """Close the connection after an error; return the one to raise."""
        self.close()
        self._report_timeout(error)
        if isinstance(error, TimeoutError | BlockingIOError) and not isinstance(error, Late):
            return Disconnected(f"Redis did not reply within {self.timeout:g} s.")
        return Disconnected(f"The connection to Redis broke: {error}")

    def _fail(self, error: BaseException) -> None:
        """Close the connection; raise Disconnected for an error of the network or the protocol."""
        broken = self.broken(error)
        if isinstance(error, BROKEN):
            raise broken from error

    def _report_timeout(self, error: BaseException) -> None:
        if self._breaker and is_timeout(error) and not isinstance(error, Late):
            self._breaker.open()
