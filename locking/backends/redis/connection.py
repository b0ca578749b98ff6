"""One bare connection to a Redis, and a pool of them.

redis-py makes the connection (address, TLS, password, database), then stays out of the way: a
command costs one `sendall` and one `recv`, which halves the time of a lock. RESP3 lets a connection
that is subscribed send commands too, so a waiter needs no second connection and no thread.

Every error of the client library, the network or the server arrives as LockUnavailable with its
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
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from locking.backends.circuit_breaker import Silence
from locking.exceptions import LockUnavailable

T = TypeVar("T")

MAX_IDLE = 64
"""Connections that a pool keeps while nobody uses them."""

SILENT = "Redis has been silent for a while."
HEAR_SECONDS = 0.8
"""How long the thread that listens for a silent server waits for an answer."""

FRESH = 0.01
"""Seconds for which a wire that was given back is trusted to be open."""

READ_SIZE = 4096

CURT: dict[str, Any] = {"protocol": 2, "driver_info": None}
"""redis-py otherwise says four things before the first command, and waits for each answer."""

NOTHING: Any = object()
"""What `Wire.take` returns when no whole reply has arrived."""

_LUA = Path(__file__).parents[1] / "lua"


@cache
def redis_silence(url: str) -> Silence:
    """Of the server at this address, for all clients of this process that share what they know."""

    def hear() -> None:
        try:
            wire = Wire(url, timeout=HEAR_SECONDS, connect_timeout=HEAR_SECONDS)
            wire.command("PING")
            wire.close()
        except LockUnavailable as error:
            if is_silence(error):
                raise

    return Silence(f"Redis at {urlsplit(url).netloc.rpartition('@')[2]}", hear)


def is_silence(error: BaseException | None) -> bool:
    """Whether it means that no answer came in time; a refusal, too, would be an answer."""
    return isinstance(error, redis.TimeoutError | TimeoutError | BlockingIOError) or (
        error is not None and is_silence(error.__cause__)
    )


class OnceMore(Retry):
    """redis-py's: a command is sent once more where the connection broke; to no silent server."""

    def __init__(self, url: str) -> None:
        super().__init__(NoBackoff(), 1)  # its own default waits for seconds
        self._silence = redis_silence(url)

    def call_with_retry(self, do: Callable[[], T], *args: Any, **kwargs: Any) -> T:
        """See `Retry`."""

        def ask() -> T:
            if self._silence.is_on:
                raise redis.ConnectionError(SILENT)
            try:
                return do()
            except (redis.TimeoutError, TimeoutError):
                self._silence.begin()
                raise

        return super().call_with_retry(ask, *args, **kwargs)


class Disconnected(LockUnavailable):
    """The connection broke or the server stayed silent: a command may or may not have run."""


class Refused(LockUnavailable):
    """The server answered with an error."""


class Script:
    """A Lua script, joined from files of `lua/`; called by its hash."""

    def __init__(self, *files: str) -> None:
        self.source = "\n".join((_LUA / file).read_text() for file in files)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def pack(self, keys: Sequence[str], args: Iterable[str] = (), *, whole: bool = False) -> bytes:
        """The command that runs it: EVALSHA, or EVAL with the `whole` source."""
        head = ("EVAL", self.source) if whole else ("EVALSHA", self.sha)
        return pack(*head, str(len(keys)), *keys, *args)


def pack(*command: str) -> bytes:
    """One command as the bytes to send."""
    return hiredis.pack_command(command)  # type: ignore[no-any-return, arg-type]


def milliseconds(seconds: float) -> str:
    """A time as Redis takes it; never less than was asked for."""
    return str(math.ceil(seconds * 1000))


class Wire:
    """One connection, subscribed to `channel` when there is one.

    Whatever interrupts a request closes it, since the next reply may be a late one. Not
    thread-safe, except for `interrupt`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 1.0,
        connect_timeout: float = 1.0,
        channel: str = "",
        silence: Silence | None = None,
    ) -> None:
        self.timeout = timeout
        self.channel = channel
        self.silence = silence
        self.closed = False
        self.idle_since = 0.0
        self._reader = hiredis.Reader(
            encoding="utf-8", errors="surrogateescape", notEnoughData=NOTHING
        )
        try:
            pool: Any = redis.ConnectionPool.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=connect_timeout,
                retry=Retry(NoBackoff(), 0),
                **CURT,
            )
            self._connection = pool.make_connection()
            self._connection.connect()
        except (redis.RedisError, OSError, ValueError) as error:
            self._say_if_silent(error)
            raise Disconnected(f"No connection to Redis: {error}") from error
        self._socket: socket.socket = self._connection._sock  # there is no public way to it
        if not isinstance(self._socket, ssl.SSLSocket):
            # Time limits kept by the kernel save a poll before each send and receive.
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._socket.settimeout(None)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._greets = bool(channel)
        """Whether the first reply is still to come: to HELLO, for which nobody waits by itself."""
        if channel:
            self.send(pack("HELLO", "3") + pack("SUBSCRIBE", channel))
        else:  # one of several servers: nothing is asked of one that does not even greet
            self.command("HELLO", "3")

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, packed: bytes) -> None:
        """Send commands; a `reply` is due for each, in order."""
        try:
            self._socket.sendall(packed)
        except BaseException as error:
            self._fail(error)
            raise

    def receive(self) -> None:
        """Take in what has arrived, or what arrives first within the timeout."""
        try:
            data = self._socket.recv(READ_SIZE)
            if not data:
                raise EOFError("the server closed it")
            self._reader.feed(data)
        except BaseException as error:
            self._fail(error)
            raise

    def take(self) -> Any:
        """The next reply or push that was received whole, else NOTHING. Errors are returned."""
        try:
            return self._reader.gets()
        except BaseException as error:
            self._fail(error)
            raise

    def push(self, until: float) -> list[Any] | None:
        """The next push, or None when none came until that monotonic time."""
        while True:
            item = self.take()
            if isinstance(item, hiredis.PushNotification):
                return list(item)
            if item is NOTHING:
                left = until - time.monotonic()
                if left <= 0 or not self._readable(left):
                    return None
                self.receive()

    def is_quiet(self) -> bool:
        """Whether it is open with nothing to read. A push that nobody waits for is dropped."""
        try:
            while self._readable(0):
                self.receive()
                while self.take() is not NOTHING:
                    pass
        except LockUnavailable:
            return False
        return True

    def _readable(self, seconds: float) -> bool:
        pending = getattr(self._socket, "pending", None)  # what TLS has already decoded
        if pending is not None and pending():
            return True
        try:
            return bool(self._poll.poll(seconds * 1000))
        except BaseException as error:
            self._fail(error)
            raise

    def command(self, *command: str) -> Any:
        """Send one command and return its reply."""
        return self.request(pack(*command))

    def run(self, script: Script, keys: Sequence[str], args: Iterable[str] = ()) -> Any:
        """Run a script, teaching it to a server that does not know it."""
        try:
            return self.request(script.pack(keys, args))
        except Refused:
            if self.closed:
                raise
        return self.request(script.pack(keys, args, whole=True))

    def request(self, packed: bytes) -> Any:
        """Send a command and return its reply. Pushes that come before it are dropped."""
        try:
            self._socket.sendall(packed)
            while True:
                item = self._reader.gets()
                if item is NOTHING:
                    data = self._socket.recv(READ_SIZE)
                    if not data:
                        raise EOFError("the server closed it")
                    self._reader.feed(data)
                elif self._greets and not isinstance(item, hiredis.ReplyError):
                    self._greets = False
                elif not isinstance(item, hiredis.PushNotification):
                    break
        except BaseException as error:
            self._fail(error)
            raise
        if isinstance(item, hiredis.ReplyError):
            # A READONLY or LOADING server may be another one after the next connect.
            if not str(item).startswith("NOSCRIPT"):
                self.close()
            raise Refused(f"Redis refuses: {item}") from item
        return item

    def interrupt(self) -> None:
        """From another thread: end whatever it waits for. It is closed by that."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def close(self) -> None:
        """Say goodbye to the server; in a forked child only forget it."""
        self.closed = True
        self._connection.disconnect()

    def _fail(self, error: BaseException) -> None:
        """Close, and translate what a caller can do nothing about."""
        self.close()
        self._say_if_silent(error)
        if isinstance(error, TimeoutError | BlockingIOError):
            raise Disconnected(f"Redis was silent for {self.timeout:g} s.") from error
        if isinstance(error, OSError | EOFError | ValueError | hiredis.HiredisError):
            raise Disconnected(f"The connection to Redis broke: {error}") from error

    def _say_if_silent(self, error: BaseException) -> None:
        if self.silence and is_silence(error):
            self.silence.begin()


class WirePool:
    """Wires to one server, the one used last first. Thread-safe; empty again in a forked child.

    While the server is silent there are none: Disconnected.
    """

    def __init__(self, url: str, *, timeout: float = 1.0, connect_timeout: float = 1.0) -> None:
        self.url = url
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._silence = redis_silence(url)
        self._idle: deque[Wire] = deque()
        self._all: weakref.WeakSet[Wire] = weakref.WeakSet()

    def refuse_while_silent(self) -> None:
        """Raise Disconnected where an answer has been waited for in vain."""
        if self._silence.is_on:
            raise Disconnected(SILENT) from TimeoutError("an earlier command had no answer")

    def open(self, channel: str = "") -> Wire:
        """A new wire."""
        self.refuse_while_silent()
        wire = Wire(
            self.url,
            timeout=self.timeout,
            connect_timeout=self.connect_timeout,
            channel=channel,
            silence=self._silence,
        )
        self._all.add(wire)
        return wire

    def take(self) -> Wire | None:
        """An idle wire whose server has not closed it, if there is one."""
        self.refuse_while_silent()
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - wire.idle_since < FRESH or wire.is_quiet():
                return wire

    def give(self, wire: Wire) -> None:
        """Keep a wire that has no reply due for the next user."""
        if wire.closed:
            return
        if len(self._idle) < MAX_IDLE:
            wire.idle_since = time.monotonic()
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets, those in use there included."""
        self._idle.clear()
        for wire in list(self._all):
            wire.close()
        self._all.clear()


def eviction(url: str) -> str:
    """Which keys a full Redis throws away: its policy, or "noeviction" where it is never full."""
    wire = Wire(url, timeout=0.5, connect_timeout=0.5)
    settings = wire.command("CONFIG", "GET", "maxmemory*")
    wire.close()
    if settings.get("maxmemory") == "0":
        return "noeviction"
    return str(settings.get("maxmemory-policy"))
