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
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from django.core.checks import CheckMessage
from django.utils.translation import gettext_noop

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.database.backend import check_location
from locking.backends.database.pool import SessionPool
from locking.backends.database.session import (
    Cancelled,
    ConnectionLost,
    MySQLSession,
    Session,
    user_lock_waits,
)
from locking.backends.database.sql import digest
from locking.exceptions import LockMisuse, LockUnavailable

SLICE_SECONDS = 60.0
"""Seconds that one statement waits: after that, an unreachable server is detected."""
TOKEN = f"UUID_SHORT() & {2**63 - 1}"
"""The mask keeps tokens of servers whose id is 128 or more in the range of a BIGINT."""
WATCH_INTERVAL = 0.2
"""Seconds between two checks of the held connections, which send nothing to the server."""


class MySQLSessionBackend(Backend):
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

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.pool = SessionPool(str(self.location))
        self._pinned: dict[str, tuple[Claim, MySQLSession, int]] = {}
        """By owner: the claim, its session and its token."""
        self._watching = threading.Event()
        self._stop = threading.Event()

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check that LOCATION is an alias in DATABASES, of MySQL or MariaDB."""
        return check_location(alias, conf, "mysql")

    def _key(self, name: str) -> str:
        return f"lock.{digest(f'{self.pool.database}/{name}')}"

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the server's queue; a cancelled claim closes the connection."""
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
            session.pinned = True
            self._pinned[claim.owner] = (claim, session, token)
            if not self._watching.is_set():
                self._watch()
            return token

        try:
            token = self.pool.call(wait, until=deadline)
        except Cancelled:
            return None
        except BaseException:
            if claim.owner in self._pinned:
                self._pinned.pop(claim.owner)[1].close()
            raise
        return None if token is None else Grant(token, math.inf)

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock; the server checks that this session has it."""
        if not self._ask(claim, "SELECT RELEASE_LOCK(%s)", releases=True):
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Check that the session still has the lock, which has no lease."""
        if not self._ask(claim, "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"):
            raise claim.lost()
        return math.inf

    def _ask(self, claim: Claim, sql: str, releases: bool = False) -> bool:
        """Run a statement on the claim's own session; return True if its result is 1."""
        pinned = self._pinned.pop(claim.owner, None)
        if pinned is None:
            return False
        session = pinned[1]
        try:
            row = session.row(sql, self._key(claim.name))
        except ConnectionLost:
            session.close()
            return False
        except BaseException:
            session.close()
            self.pool.kill(session)
            raise
        if row is None or row[0] != 1:
            session.close()
            return False
        if releases:
            session.pinned = False
            self.pool.give(session)
        else:
            self._pinned[claim.owner] = pinned
        return True

    def _watch(self) -> None:
        threading.Thread(
            target=self._run, args=(self._stop,), name="lock-sessions", daemon=True
        ).start()
        self._watching.set()

    def _run(self, stop: threading.Event) -> None:
        """Report the locks whose connection the server has closed, and free abandoned ones."""
        while not stop.wait(WATCH_INTERVAL):
            for pinned in list(self._pinned.values()):
                claim, session, _ = pinned
                if claim.report_lost is None:
                    continue
                # `_ask` takes the session out first, so the input here is not a reply.
                ended = session.has_input() and self._pinned.get(claim.owner) is pinned
                if ended or claim.is_abandoned:
                    claim.report_lost()
                if claim.is_abandoned:
                    with suppress(KeyError):
                        self._pinned.pop(claim.owner)[1].close()

    def inspect(self) -> list[Held]:
        """Return this process's locks; other sessions' locks are visible to administrators only."""
        pinned = list(self._pinned.values())
        waits = self.pool.call(user_lock_waits) if pinned else []
        return [
            Held(
                name=claim.name,
                owner=claim.owner,
                token=token,
                waiters=sum(self._key(claim.name) in wait for wait in waits),
            )
            for claim, _, token in pinned
        ]

    def probe(self) -> None:
        """Run SELECT 1."""
        self.pool.call(lambda session: session.row("SELECT 1"))

    def break_lock(self, name: str) -> bool:
        """Kill the session that has the lock."""

        def end(session: Session) -> bool:
            row = session.row("SELECT IS_USED_LOCK(%s)", self._key(name))
            if row is None or row[0] is None:
                return False
            with suppress(LockUnavailable):  # it may have ended meanwhile
                session.change(f"KILL {int(row[0])}")
            return True

        return self.pool.call(end)

    def close(self) -> None:
        """Close the connections, which releases all held locks."""
        self._stop.set()
        self._stop, self._watching = threading.Event(), threading.Event()
        while self._pinned:
            with suppress(KeyError):
                self._pinned.popitem()[1][1].close()
        self.pool.close()

    def reset_after_fork(self) -> None:
        """Abandon the parent's sessions before the last reference to them is dropped."""
        super().reset_after_fork()
        self.pool.reset_after_fork()
        self._stop, self._watching = threading.Event(), threading.Event()
        self._pinned = {}
