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
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from django.core.checks import CheckMessage
from django.utils.translation import gettext_noop

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.database.backend import check_location
from locking.backends.database.connections import (
    Cancelled,
    Gone,
    MySQLSession,
    Pool,
    Session,
    waiting,
)
from locking.backends.database.waiting import digest
from locking.exceptions import LockMisuse, LockUnavailable

SLICE_SECONDS = 60.0
"""How long one statement waits: a server that died without a word is noticed after that."""
TOKEN = f"UUID_SHORT() & {2**63 - 1}"
"""Servers whose number is 128 or more would leave the range of a BIGINT."""
WATCH_SECONDS = 0.2
"""How often held connections are looked at; that asks the server nothing."""


class MySQLSessionBackend(Backend):
    """GET_LOCK, a connection for each lock. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary=gettext_noop(
            "GET_LOCK: fast, queued in the server, gone with the holder's connection."
        ),
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
        self._watching = threading.Event()
        self._stop = threading.Event()

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """LOCATION must be an alias in DATABASES, and that must be MySQL or MariaDB."""
        return check_location(alias, conf, "mysql")

    def _key(self, name: str) -> str:
        return f"lock.{digest(f'{self.pool.database}/{name}')}"

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the server's queue; cancelling ends the connection."""
        if self.pool.vendor != "mysql":
            raise LockMisuse(f"{self.alias}: GET_LOCK needs MySQL or MariaDB.")
        deadline = time.monotonic() + timeout

        def wait(session: Session) -> int | None:
            assert isinstance(session, MySQLSession)
            key = self._key(claim.name)
            row = session.row(f"SELECT IF(GET_LOCK(%s, 0) = 1, {TOKEN}, NULL)", key)
            token: int | None = row[0] if row else None
            while token is None:
                left = deadline - time.monotonic()
                if left <= 0 or claim.cancelled.is_set():
                    return None
                token = session.get_lock(claim, key, min(left, SLICE_SECONDS), TOKEN)
            session.kept = True
            self._kept[claim.owner] = (claim, session, token)
            if not self._watching.is_set():
                self._watch()
            return token

        try:
            token = self.pool.call(wait, until=deadline)
        except Cancelled:
            return None
        except BaseException:
            if claim.owner in self._kept:
                self._kept.pop(claim.owner)[1].close()
            raise
        return None if token is None else Grant(token, math.inf)

    def release(self, claim: Claim, token: int) -> None:
        """The server checks that this very session has it."""
        if not self._ask(claim, "SELECT RELEASE_LOCK(%s)", last=True):
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Nothing ends here by itself; ask whether the session still has it."""
        if not self._ask(claim, "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"):
            raise claim.lost()
        return math.inf

    def _ask(self, claim: Claim, sql: str, last: bool = False) -> bool:
        """Ask on the claim's own connection, kept unless this is the `last` question."""
        kept = self._kept.pop(claim.owner, None)
        if kept is None:
            return False
        session = kept[1]
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
            self._kept[claim.owner] = (kept[0], session, kept[2])
        return True

    def _watch(self) -> None:
        threading.Thread(
            target=self._look, args=(self._stop,), name="lock-sessions", daemon=True
        ).start()
        self._watching.set()

    def _look(self, stop: threading.Event) -> None:
        """What comes on an idle connection unasked is its end: tell its holder."""
        while not stop.wait(WATCH_SECONDS):
            for lease in list(self.held.values()):
                kept = self._kept.get(lease.owner)
                if kept is None or not lease.is_held:
                    continue
                # Whoever is about to ask takes it out first, so an answer is not taken for the end.
                ended = kept[1].has_something_to_say() and self._kept.get(lease.owner) is kept
                if ended or lease.orphaned:
                    lease.mark_lost()
                if lease.orphaned:  # nobody will release it
                    lease.forget()
                    with suppress(KeyError):
                        self._kept.pop(lease.owner)[1].close()

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
        self._stop.set()
        self._stop, self._watching = threading.Event(), threading.Event()
        while self._kept:
            with suppress(KeyError):
                self._kept.popitem()[1][1].close()
        self.pool.close()

    def reset_after_fork(self) -> None:
        """In a forked child: the locks and their connections are the parent's."""
        super().reset_after_fork()
        self.pool.reset_after_fork()
        self._stop, self._watching = threading.Event(), threading.Event()
        for _, session, _ in self._kept.values():
            session.abandon()
        self._kept = {}
