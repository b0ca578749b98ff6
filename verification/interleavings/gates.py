"""Stop clients before each command, script or statement that reaches a server.

The clients' own code runs unchanged. Inside `gates`, the methods that send are replaced by ones
that stop first; threads that are no clients pass.
"""

import fcntl
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import redis

from locking.backends.database import waiting
from locking.backends.database.session import SQLiteSession
from locking.backends.redis.connection import Connection, Disconnected
from locking.backends.redlock.quorum import MasterConnection, Quorum
from locking.claims import LazyEvent
from verification.interleavings.schedule import current_client
from verification.interleavings.worlds import World

MAX_POLLS = 1
"""Pauses after which a client that polls gives up. Without a limit, some runs would never end."""
REPLY_SECONDS = 5.0
WAITS = "waits for a message"

Send = Callable[..., Any]


class Pause(LazyEvent):
    """The `cancelled` of a claim, whose `wait` is the pause between two attempts.

    The next attempt waits until another client has done something: nothing else could help it.
    """

    __slots__ = ("_polls",)

    def __init__(self) -> None:
        super().__init__()
        self._polls = 0

    def wait(self, timeout: float) -> bool:
        """Return at once, but do not let the client continue before the others."""
        client = current_client()
        if client is not None and not self.is_set():
            client.pause()
            self._polls += 1
            if self._polls > MAX_POLLS:
                self.set()
        return self.is_set()


@contextmanager
def gates(world: World) -> Iterator[None]:
    """Stop the clients before their operations."""
    gated = partial(_gated, world)
    with ExitStack() as stack:
        for owner, method, wrap in (
            (Connection, "run", partial(gated, lambda script, *_: script.name)),
            (Connection, "command", partial(gated, lambda *words: words[0])),
            (redis.Redis, "execute_command", partial(gated, lambda *words: words[0])),
            (SQLiteSession, "_run", partial(gated, lambda sql, *_: title(sql))),
            (MasterConnection, "send", _send_and_wait),
            (Quorum, "send", _in_order),
            (Connection, "wait_for_push", partial(_wait_for_push, world)),
        ):
            stack.enter_context(patch.object(owner, method, wrap(getattr(owner, method))))
        # Real time must not end a reservation in the middle of a run.
        stack.enter_context(patch.object(waiting, "RESERVED_SECONDS", 3600.0))
        yield


def _gated(world: World, name: Callable[..., str], send: Send) -> Send:
    def stop_and_send(self: Any, *args: Any, **options: Any) -> Any:
        client = current_client()
        if client is None:
            return send(self, *args, **options)
        if getattr(self, "hello_pending", False):
            world.sync()  # a new connection has subscribed before others go on
        client.step(name(*args))
        reply = send(self, *args, **options)
        if client.memory.pop("loses reply", False):
            self.close()
            world.sync()
            raise Disconnected("The reply is lost.")
        return reply

    return stop_and_send


def _wait_for_push(world: World, receive: Send) -> Send:
    def wait(self: Connection, until: float) -> Any:
        client = current_client()
        if client is None:
            return receive(self, until)

        def has_message() -> bool:
            world.sync()
            return bool(select.select([self.socket], [], [], 0)[0])

        client.step(WAITS, lambda: "is due" in client.memory or has_message())
        client.memory.pop("is due", None)
        if "gives up" in client.memory or not has_message():
            return None
        return receive(self, time.monotonic() + REPLY_SECONDS)

    return wait


def _send_and_wait(send: Send) -> Send:
    """Also wait for the reply, so that the master has run the command before the next step."""

    def stop_and_send(self: MasterConnection, packed: bytes) -> None:
        if client := current_client():
            what = "PEXPIRE" if b"PEXPIRE" in packed else packed.split(b"\r\n", 3)[2].decode()
            client.step(f"{what} on {self.url.rpartition(':')[2].partition('/')[0]}")
        before, until = _unread(self), time.monotonic() + REPLY_SECONDS
        send(self, packed)
        while _unread(self) == before and time.monotonic() < until:
            if not before:
                select.select([self.socket], [], [], REPLY_SECONDS)

    return stop_and_send


def _in_order(send: Send) -> Send:
    """Ask the masters in one order: a quorum has them in the order in which they accepted it."""

    def send_in_order(self: Quorum, masters: Iterable[MasterConnection], packed: bytes) -> Any:
        return send(self, sorted(masters, key=lambda master: master.url), packed)

    return send_in_order


def _unread(connection: Connection) -> int:
    """Return how many bytes have arrived on a connection."""
    found = fcntl.ioctl(connection.socket, termios.FIONREAD, b"\0" * 4)
    return int(struct.unpack("i", found)[0])


def stop_at_sql(run: Send, sql: str, params: Any, many: bool, context: Any) -> Any:
    """Stop a client before a statement of Django; a transaction is one operation."""
    client = current_client()
    if client is not None and not context["connection"].in_atomic_block:
        client.step(title(sql))
    return run(sql, params, many, context)


def title(sql: str) -> str:
    """Return verb and table of a statement."""
    found = re.search(r"(?:UPDATE|INTO|FROM) \W?(\w+)", sql)
    return f"{sql.split()[0]} {found[1]}" if found else sql
