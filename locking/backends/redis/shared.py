"""A connection to Redis that all tasks of an event loop share."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import hiredis

from locking.backends.redis.connection import (
    BROKEN,
    NO_REPLY,
    OTHER_SERVER,
    Connection,
    Disconnected,
    Refused,
    Script,
    Undo,
)

READ_SIZE = 1 << 16

OnReply = Callable[[Any], object]


class SharedConnection:
    """Sends commands without waiting; replies arrive in their order, and pushes in between.

    Not thread-safe: it belongs to the event loop in which it was created. `on_push` gets the text
    of each message to the connection's channel, `on_end` is called once the connection is broken.
    """

    def __init__(
        self,
        connection: Connection,
        on_push: Callable[[str], object],
        on_end: Callable[[], object],
    ) -> None:
        self.closed = False
        self._connection = connection
        self._socket = connection.socket
        self._socket.setblocking(False)
        self._on_push = on_push
        self._on_end = on_end
        greeting: list[tuple[OnReply, Undo]] = [(self._greeted, None)]
        self._callbacks = deque(greeting * connection.hello_pending)
        self._unsent = bytearray()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._check: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._socket, self._read)

    async def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str], undo: Undo = None
    ) -> Any:
        """Run a script and return its reply; send its source if the server does not have it."""
        try:
            return await self._request(script.pack(keys, args), undo)
        except Refused as error:
            if not str(error.__cause__).startswith("NOSCRIPT"):
                raise
        return await self._request(script.pack(keys, args, whole=True), undo)

    async def _request(self, packed: bytes, undo: Undo) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def on_reply(reply: Any) -> None:
            if not future.done():  # its task may have been cancelled
                future.set_result(reply)

        self.send(packed, on_reply, undo)
        reply = await future
        if isinstance(reply, Disconnected):
            raise reply
        if isinstance(reply, hiredis.ReplyError):
            raise Refused(f"Redis returned an error: {reply}") from reply
        return reply

    def send(self, packed: bytes, on_reply: OnReply, undo: Undo = None) -> None:
        """Send a command; `on_reply` gets its reply, an error reply, or Disconnected.

        It may still arrive after a timeout: the command that `undo` returns is then sent behind it.
        """
        if self.closed:
            on_reply(Disconnected("The connection to Redis broke."))
            return
        self._callbacks.append((on_reply, undo))
        if self._check is None:
            self._heard_at = self._loop.time()
            self._check = self._loop.call_later(self._connection.timeout, self._check_replies)
        self._unsent += packed
        if len(self._unsent) == len(packed):
            self._write()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError as error:
            # Not now: the caller is about to wait for the reply.
            self._loop.call_soon(self.end, error)
            return
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            while not self.closed:
                data = self._socket.recv(READ_SIZE)
                if not data:
                    raise EOFError("the server closed it")
                self._connection.feed(data)
                self._handle_replies()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except (*BROKEN, Disconnected) as error:
            self.end(error)

    def _handle_replies(self) -> None:
        self._heard_at = self._loop.time()
        while (item := self._connection.next_reply()) is not NO_REPLY and not self.closed:
            if not isinstance(item, hiredis.PushNotification):
                on_reply, _ = self._callbacks.popleft()
                on_reply(item)
                if isinstance(item, hiredis.ReplyError) and str(item).startswith(OTHER_SERVER):
                    self.end(EOFError(str(item)))
            elif item[0] == "message":
                self._on_push(item[2])

    def _greeted(self, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            self.end(EOFError(str(reply)))

    def _check_replies(self) -> None:
        self._check = None
        if not self._callbacks:
            return
        silent = self._loop.time() - self._heard_at
        timeout = self._connection.timeout
        if silent >= timeout:
            self.end(TimeoutError())
        else:
            self._check = self._loop.call_later(timeout - silent, self._check_replies)

    def end(self, error: Exception) -> None:
        """Close the connection; all commands without a reply get Disconnected."""
        if self.closed:
            return
        self.closed = True
        if self._check is not None:
            self._check.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        callbacks, self._callbacks = self._callbacks, deque()
        if isinstance(error, TimeoutError):
            undone = b"".join(undo() for _, undo in callbacks if undo is not None)
            with suppress(OSError):
                self._socket.send(self._unsent + undone)
        broken = self._connection.broken(error)
        broken.__cause__ = error
        for on_reply, _ in callbacks:
            on_reply(broken)
        self._on_end()
