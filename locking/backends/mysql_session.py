"""GET_LOCK, a user-level lock of MySQL and MariaDB: one statement, ends with the session.

Each held lock has a connection of its own, so one lost connection is one lost lock. A thread
watches these connections: the server closes one when its session ends, and the lease is then marked
as lost at once. Waiters queue in the server, in order. Lock names are hashed: the server allows 64
characters, ignores case and shares the names between its databases, so the hash includes the
database's name.

Tokens are UUID_SHORT(): the server's id, the second of its start, a counter. They grow through
restarts of one server unless its clock is set back further than it ran before. After a failover
(which no GET_LOCK survives, because it is not replicated) they may be lower, and the guarded row
refuses them until the policy's epoch grows: switch the backend once.

If the holder's machine disappears from the network, the lock is held until the server's TCP
connection times out.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, ClassVar

from django.utils.translation import gettext_noop

from locking.backends.database.base import DatabaseLocks
from locking.backends.database.session import (
    Cancelled,
    ConnectionLost,
    Session,
    UserLockSession,
)
from locking.backends.database.sql import digest
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockMisuse
from locking.fork import RenewedLock

SLICE_SECONDS = 60.0
"""Seconds that one statement waits: after that, an unreachable server is detected."""
TOKEN = f"UUID_SHORT() & {2**63 - 1}"
"""The mask keeps tokens of servers whose id is 128 or more in the range of a BIGINT."""
GALERA = "SHOW VARIABLES LIKE 'wsrep_on'"
WATCH_INTERVAL = 0.2
"""Seconds between two checks of the held connections, which send nothing to the server."""


class SessionLocks(DatabaseLocks[UserLockSession]):
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
        self._stop: threading.Event | None = None
        """Ends the thread that watches the pinned sessions; None while there is none."""
        self._starting = RenewedLock()

    def _key(self, name: str) -> str:
        return f"lock.{digest(f'{self.pool.database}/{name}')}"

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the server's queue; a cancelled claim closes the connection."""
        deadline = time.monotonic() + timeout

        def wait(session: Session) -> int | None:
            self.refuse(session)
            locks = _locks(session)
            token = self.take(locks, claim)
            while token is None:
                left = deadline - time.monotonic()
                if left <= 0 or claim.cancelled.is_set():
                    return None
                token = self.wait(locks, claim, min(left, SLICE_SECONDS))
            claim.token = token
            self.pin(locks, claim)
            self._watch()
            return token

        try:
            token = self.pool.call(wait, until=deadline)
        except Cancelled:
            return None
        except BaseException:
            if session := self.pinned.pop(claim.owner, None):
                session.close()
            raise
        return None if token is None else Grant(token, math.inf)

    def refuse(self, session: Session) -> None:
        """Raise LockMisuse if the server's locks do not exclude others."""

    def take(self, session: UserLockSession, claim: Claim) -> int | None:
        """Return a token if the lock is free."""
        row = session.row(self.attempt, session.key(self._key(claim.name)))
        return row[0] if row else None

    def wait(self, session: UserLockSession, claim: Claim, seconds: float) -> int | None:
        """Return a token when the lock becomes free, or None after `seconds`."""
        token: int | None = session.get_lock(claim, self._key(claim.name), seconds, self.mint)
        return token

    def statement(self, session: UserLockSession, claim: Claim, sql: str) -> tuple[Any, ...]:
        """Return `free` or `owns` with its arguments."""
        return sql, session.key(self._key(claim.name))

    def waiters(self, session: UserLockSession, claim: Claim, waits: list[str]) -> int:
        """Return how many of the server's waits are for the claim's lock."""
        return sum(str(session.key(self._key(claim.name))) in wait for wait in waits)

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock; the server checks that this session has it."""
        session = self._ask(claim, self.free)
        session.claim = None
        self.pool.give(session)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Check that the session still has the lock, which has no lease."""
        self.pinned[claim.owner] = self._ask(claim, self.owns)
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
            with session.asking:
                row = session.row(*self.statement(session, claim, sql))
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

    def _watch(self) -> None:
        if self._stop is not None:
            return
        with self._starting:
            if self._stop is None:
                run, stop = self._run, threading.Event()
                threading.Thread(
                    target=run, args=(stop,), name="lock-sessions", daemon=True
                ).start()
                self._stop = stop

    def _run(self, stop: threading.Event) -> None:
        """Report the locks whose connection the server has closed."""
        while not stop.wait(WATCH_INTERVAL):
            for owner, session in list(self.pinned.items()):
                with session.asking:  # else the input may be a reply
                    # A session that `_ask` or another holder has taken is not this owner's.
                    ended = self.pinned.get(owner) is session and session.has_input()
                    report_lost = session.claim and session.claim.report_lost
                if ended and report_lost:
                    report_lost()

    def inspect(self) -> list[Held]:
        """Return this process's locks; other sessions' locks are visible to administrators only."""
        held = [(one, claim) for one in list(self.pinned.values()) if (claim := one.claim)]
        waits = self.pool.call(lambda session: _locks(session).lock_waits()) if held else []
        return [
            Held(
                name=claim.name,
                owner=claim.owner,
                token=claim.token,
                waiters=self.waiters(one, claim, waits),
            )
            for one, claim in held
        ]

    def probe(self) -> None:
        """Run SELECT 1."""
        self.pool.call(lambda session: session.row("SELECT 1"))

    def break_lock(self, name: str) -> bool:
        """Kill the session that has the lock."""
        return self.pool.call(lambda session: _locks(session).kill_holder(self._key(name)))

    def close(self) -> None:
        """Close the connections, which releases all held locks."""
        with self._starting:
            if self._stop is not None:
                self._stop.set()
                self._stop = None
        super().close()

    def reset_after_fork(self) -> None:
        """Abandon the parent's sessions; the thread that watches them is not in the child."""
        super().reset_after_fork()
        self._stop = None


def _locks(session: Session) -> UserLockSession:
    assert isinstance(session, UserLockSession)
    return session


class MySQLSessionBackend(SessionLocks):
    """GET_LOCK with a connection for each lock. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary=gettext_noop(
            "GET_LOCK: fast, queued in the server, gone with the holder's connection."
        ),
        exclusion="machines",
        session_bound=True,
        fencing=True,
        wakes_waiters=True,
    )
    engines = ("mysql",)
    mint = TOKEN
    attempt = f"SELECT IF(GET_LOCK(%s, 0) = 1, {TOKEN}, NULL)"
    free = "SELECT RELEASE_LOCK(%s)"
    owns = "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"
    _is_checked = False

    def refuse(self, session: Session) -> None:
        """Refuse a Galera cluster."""
        if self._is_checked:
            return
        if (session.row(GALERA) or ("", "OFF"))[1] == "ON":
            raise LockMisuse(
                f"{self.alias}: the nodes of a Galera cluster do not share the locks of GET_LOCK. "
                "Use the database backend."
            )
        self._is_checked = True
