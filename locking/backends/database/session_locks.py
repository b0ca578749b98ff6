"""Locks that end with a session of the server: the base of `mysql_session`, `postgresql_session`.

Each held lock has a connection of its own, so one lost connection is one lost lock. When its
session ends, the server first frees the lock and then closes the connection. A thread notices that
and marks the lease as lost: for a moment, some milliseconds on a machine that is not busy, the next
holder has the lock and the old one still believes in it. Only a fence refuses what it writes then.

If the holder's machine disappears from the network, the lock is held until the server's TCP
connection times out.
"""

from __future__ import annotations

import math
import select
import threading
import time
from typing import Any, ClassVar

from locking.backends.database.base import DatabaseLocks
from locking.backends.database.pool import SessionPool
from locking.backends.database.session import (
    LONGEST_WAIT,
    Cancelled,
    ConnectionLost,
    Session,
    UserLockSession,
)
from locking.backends.database.sql import digest
from locking.claims import Claim, Grant, Held
from locking.exceptions import LockMisuse, LockUnavailable
from locking.fork import ForkSafeLock

PROBE_SECONDS = 60.0
"""Seconds between two tests whether the server of a waiting statement can still be reached."""
WATCH_INTERVAL = 0.2
"""Seconds after which the thread looks again: a connection may end before its lease exists."""


def lock_name(pool: SessionPool, name: str) -> str:
    """Return a lock's name on the server, all of whose databases share the names."""
    return f"lock.{digest(f'{pool.database}/{name}')}"


class SessionLocks(DatabaseLocks):
    """The locks of a server's sessions, with a connection for each."""

    mint: ClassVar[str]
    """The expression for a new token."""
    attempt: ClassVar[str]
    """Return a token if the lock is free."""
    free: ClassVar[str]
    owns: ClassVar[str]
    """Return 1 if this session has the lock."""

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._watched: select.epoll | None = None
        """The connections of locks; None while no thread watches them."""
        self._starting = ForkSafeLock()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the server's queue; a cancelled claim closes the connection."""
        deadline, name = time.monotonic() + timeout, lock_name(self.pool, claim.name)

        def wait(session: Session) -> int | None:
            locks = self.checked(session)
            [(token,)] = locks.rows(self.attempt, key=locks.key(name))
            while token is None:
                left = deadline - time.monotonic()
                if left <= 0 or claim.cancelled.is_set():
                    return None
                with locks.looking(PROBE_SECONDS, self.probe):
                    token = locks.get_lock(claim, name, min(left, LONGEST_WAIT), self.mint)
            if not token:
                raise LockUnavailable(
                    f"{self.alias}: the server is read-only. Connect to the primary itself, not "
                    "through a proxy that sends SELECT to replicas."
                )
            claim.token = token
            self.pin(locks, claim)
            self._watch(locks)
            return claim.token

        try:
            token = self.pool.call(wait, until=deadline)
        except Cancelled:
            return None
        except BaseException:
            if session := self.pinned.pop(claim.owner, None):
                session.close()
            raise
        return None if token is None else Grant(token, math.inf)

    def checked(self, session: Session) -> UserLockSession:
        """Return the session; raise LockMisuse if the server's locks do not exclude others."""
        if session.user_locks is None:
            raise LockMisuse(
                f"{self.alias}: a pooler such as PgBouncer may share this database's sessions. "
                "Connect to PostgreSQL itself, or use the database backend."
            )
        return session.user_locks

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock; the server checks that this session has it."""
        claim.token = 0
        session = self._ask(claim, self.free)
        session.claim = None
        self.pool.give(session)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Check that the session still has the lock, which has no lease."""
        self.pinned[claim.owner] = self._ask(claim, self.owns)
        if not claim.token:  # released meanwhile, when the session was in use here
            self.release(claim, token)
        return math.inf

    def _ask(self, claim: Claim, sql: str) -> UserLockSession:
        """Run a statement on the claim's session; return it if the result is 1.

        Otherwise close the session and raise LockLost.
        """
        session = self.pinned.pop(claim.owner, None)
        if session is None:
            raise claim.lost()
        try:
            if self.pool.breaker.is_open:
                raise ConnectionLost
            row = session.row(sql, key=session.key(lock_name(self.pool, claim.name)))
        except ConnectionLost:
            row = None
        except BaseException:
            session.close()
            self.pool.kill(session)
            raise
        if row is None or row[0] != 1:
            session.close()
            raise claim.lost()
        return session

    def _watch(self, session: UserLockSession) -> None:
        """Let the thread notice the end of the session's connection; start it if necessary."""
        with self._starting:
            watched = self._watched
            if watched is None:
                watched = self._watched = select.epoll()
                run = threading.Thread(
                    target=self._run, args=(watched,), name="lock-sessions", daemon=True
                )
                try:
                    run.start()
                except BaseException:
                    self._watched = None
                    raise
        session.watch(watched)

    def _run(self, watched: select.epoll) -> None:
        """Report the locks whose connection the server has closed."""
        while self._watched is watched:
            watched.poll(WATCH_INTERVAL)
            for owner, session in list(self.pinned.items()):
                # A session that `_ask` has taken is no longer the owner's.
                if session.is_ended() and self.pinned.get(owner) is session:
                    _report_lost(session)

    def inspect(self) -> list[Held]:
        """Return this process's locks; other sessions' locks are visible to administrators only."""
        held = [(one, claim) for one in list(self.pinned.values()) if (claim := one.claim)]
        waits = self.pool.call(lambda session: self.checked(session).lock_waits()) if held else []
        found = []
        for one, claim in held:
            key = str(one.key(lock_name(self.pool, claim.name)))
            waiters = sum(key in wait for wait in waits)
            found.append(
                Held(name=claim.name, owner=claim.owner, token=claim.token, waiters=waiters)
            )
        return found

    def break_lock(self, name: str) -> bool:
        """Kill the session that has the lock; a repeated statement spares the next one."""
        key = lock_name(self.pool, name)
        holder = self.pool.call(lambda session: self.checked(session).holder_of(key))
        if holder:
            self.pool.call(lambda session: self.checked(session).end_holder(key, holder))
        return bool(holder)

    def close(self) -> None:
        """Close the connections, which releases all held locks."""
        self._watched, ended = None, list(self.pinned.values())
        super().close()
        for session in ended:
            _report_lost(session)

    def reset_after_fork(self) -> None:
        """Abandon the parent's sessions; the thread that watches them is not in the child."""
        super().reset_after_fork()
        self._watched = None


def _report_lost(session: UserLockSession) -> None:
    report_lost = session.claim and session.claim.report_lost
    if report_lost:
        report_lost()
