"""MySQL's and MariaDB's own lock, GET_LOCK: one statement, nothing written, ends with the session.

Each held lock has a connection of its own, so that one lost connection is one lost lock. A thread
watches them: the server closes it when the session ends, and the lease is lost at once. Waiters
queue in the server, in order. Names are hashed: the server's have 64 characters at most, to it `A`
is `a`, and all its databases share them, so that the database's name goes into the hash too.

Tokens are UUID_SHORT(): the server's number, the second of its start, a counter. They grow, also
through restarts of one server, as long as its clock is not set back further than it ran before. On
another server (a fail-over, which no GET_LOCK survives: it is not replicated) they may be lower,
and the guarded row refuses them until the policy's epoch grows: switch once.

A holder whose machine vanishes without a word keeps the lock until the server's TCP gives it up.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, ClassVar

from django.core.checks import CheckMessage

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.database import check_location
from locking.backends.database_session import (
    Cancelled,
    Gone,
    MySQLSession,
    Pool,
    Session,
    waiting,
)
from locking.exceptions import LockLost, LockMisuse, LockUnavailable

SLICE_SECONDS = 60.0
"""How long one statement waits: a server that died without a word is noticed after that."""
TOKEN = f"UUID_SHORT() & {2**63 - 1}"
"""Servers whose number is 128 or more would leave the range of a BIGINT."""


class MySQLSessionBackend(Backend):
    """GET_LOCK, a connection for each lock. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary="GET_LOCK: fast, queued in the server, gone with the holder's connection.",
        exclusion="machines",
        session_bound=True,
        fencing=True,
        wakes_waiters=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.pool = Pool(str(self.location))
        self._kept: dict[str, tuple[Claim, MySQLSession, int]] = {}
        """By owner: the claim, its connection and its token."""
        self._watch = Watch(self._ended)

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """LOCATION must be an alias in DATABASES, and that must be MySQL or MariaDB."""
        return check_location(alias, conf, "mysql")

    def _key(self, name: str) -> str:
        text = f"{self.pool.database}/{name}"
        return f"lock.{blake2b(text.encode(), digest_size=16).hexdigest()}"

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the server's queue; cancelling ends the connection."""
        if self.pool.vendor != "mysql":
            raise LockMisuse(f"{self.alias}: GET_LOCK needs MySQL or MariaDB.")
        deadline = time.monotonic() + timeout

        def wait(session: Session) -> int | None:
            assert isinstance(session, MySQLSession)
            while True:
                left = max(0.0, deadline - time.monotonic())
                seconds = min(left, SLICE_SECONDS)
                token = session.get_lock(claim, self._key(claim.name), seconds, TOKEN)
                if token is not None:
                    session.kept = True
                    self._kept[claim.owner] = (claim, session, token)
                    self._watch.add(claim.owner, session)
                    return int(token)
                if seconds == left or claim.cancelled.is_set():
                    return None

        try:
            token = self.pool.call(wait, until=deadline)
        except Cancelled:
            return None
        return None if token is None else Grant(token, math.inf)

    def release(self, claim: Claim, token: int) -> None:
        """The server checks that this very session has it."""
        if not self._ask(claim, "SELECT RELEASE_LOCK(%s)", last=True):
            raise LockLost(f"{claim.name!r} is not held by {claim.owner}.")

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Nothing ends here by itself; ask whether the session still has it."""
        if not self._ask(claim, "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"):
            raise LockLost(f"{claim.name!r} is not held by {claim.owner}.")
        return math.inf

    def _ask(self, claim: Claim, sql: str, last: bool = False) -> bool:
        """Ask on the claim's own connection, kept unless this is the `last` question."""
        claim_, session, token = self._kept.pop(claim.owner, (claim, None, 0))
        if session is None:
            return False
        self._watch.remove(session)
        try:
            row = session.row(sql, self._key(claim.name))
        except Gone:
            session.close()
            return False
        except BaseException:
            session.close()
            self.pool.kill(session)
            raise
        if row is None or row[0] != 1:
            session.close()
            return False
        if last:
            session.kept = False
            self.pool.give(session)
        else:
            self._kept[claim.owner] = (claim_, session, token)
            self._watch.add(claim.owner, session)
        return True

    def _ended(self, owner: str) -> bool:
        """The server has closed a holder's connection; False when its lease is not there yet."""
        found = False
        for lease in list(self.held.values()):
            if lease.owner == owner:
                found = True
                lease.mark_lost()
        return found or owner not in self._kept

    def inspect(self) -> list[Held]:
        """This process's own; who else has locks is for the server's administrator to see."""
        kept = list(self._kept.values())
        waits = self.pool.call(waiting) if kept else []
        return [
            Held(
                name=claim.name,
                owner=claim.owner,
                token=token,
                waiters=sum(self._key(claim.name) in wait for wait in waits),
            )
            for claim, _, token in kept
        ]

    def probe(self) -> None:
        """Ask for anything."""
        self.pool.call(lambda session: session.row("SELECT 1"))

    def break_lock(self, name: str) -> bool:
        """End the session that has it."""

        def end(session: Session) -> bool:
            row = session.row("SELECT IS_USED_LOCK(%s)", self._key(name))
            if row is None or row[0] is None:
                return False
            with suppress(LockUnavailable):  # it may have ended meanwhile
                session.change(f"KILL {int(row[0])}")
            return True

        return self.pool.call(end)

    def close(self) -> None:
        """Close the connections, and so free what is held."""
        self._watch.close()
        while self._kept:
            with suppress(KeyError):
                self._kept.popitem()[1][1].close()
        self.pool.close()

    def forget(self) -> None:
        """In a forked child: the locks and their connections are the parent's."""
        super().forget()
        self.pool.forget()
        self._watch.forget()
        for _, session, _ in self._kept.values():
            session.abandon()
        self._kept = {}


class Watch:
    """A thread that looks at idle connections: what comes there unasked is their end."""

    def __init__(self, ended: Callable[[str], bool]) -> None:
        self._ended = ended
        self._guard = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._bell: socket.socket | None = None

    def add(self, owner: str, session: MySQLSession) -> None:
        """Call `ended(owner)` when the server closes it, again after 10 ms if that says False."""
        with self._guard:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._bell, listener = socket.socketpair()
                self._selector.register(listener, selectors.EVENT_READ)
                threading.Thread(
                    target=self._run,
                    args=(self._selector, listener),
                    name="lock-sessions",
                    daemon=True,
                ).start()
            self._selector.register(session.raw, selectors.EVENT_READ, (owner, session))

    def remove(self, session: MySQLSession) -> None:
        """Leave it alone: somebody is about to use it."""
        with self._guard, suppress(KeyError, ValueError, OSError):
            if self._selector is not None:
                self._selector.unregister(session.raw)

    def _run(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        with selector, listener:
            while True:
                for key, _ in selector.select():
                    if key.fileobj is listener:
                        return
                    owner, session = key.data
                    if not self._closed(selector, session):
                        continue
                    if self._ended(owner):
                        self.remove(session)
                    else:
                        time.sleep(0.01)  # the grant is on its way to the holder

    def _closed(self, selector: selectors.BaseSelector, session: MySQLSession) -> bool:
        """Look again, now that nobody else can touch it: the event may be an answer's."""
        with self._guard:
            if selector is not self._selector or session.raw not in selector.get_map():
                return False
            return session.has_something_to_say()

    def close(self) -> None:
        """End the thread."""
        with self._guard:
            if self._bell is not None:
                self._bell.close()
            self._selector = self._bell = None

    def forget(self) -> None:
        """In a forked child there is no thread, and the parent's selector must be let alone."""
        self._guard = threading.Lock()
        if self._selector is not None:
            self._selector.close()
        self.close()
