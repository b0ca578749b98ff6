"""A row per lock, with owner, count, token and end, on the database's clock (REQUIREMENTS L4).

Taking and freeing are one UPDATE each. A free row stays, so that its token keeps growing whatever
the clock does; `sweep` deletes rows that nobody has used for long. Times and tokens are
microseconds since 1970 by the database's clock: a token is that time, or one more than the last.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.translation import gettext_noop

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.database.connections import Cancelled, Pool, Session, waiting
from locking.backends.database.sql import Statements
from locking.backends.database.waiting import Polling, Queueing, Row, bell, digest, queue
from locking.exceptions import LockError, LockMisuse, LockUnavailable

SECOND = 1_000_000
IDLE_SECONDS = 3600.0
"""How long a row is kept after its last use: far longer than any clock is ever set back."""


class DatabaseBackend(Backend):
    """Locks in a table of the shop's own database. LOCATION is an alias in DATABASES."""

    capabilities: Capabilities = Capabilities(  # type: ignore[misc]  # differs by database
        summary=gettext_noop(
            "A row per lock, nothing to run beside the database; waiters on SQLite poll."
        ),
        exclusion="machines",
        counts_in_store=True,
        expires=True,
        fencing=True,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.pool = Pool(str(self.location))
        if connections.settings.get(self.pool.alias, {}).get("ENGINE", "").endswith("mysql"):
            self.capabilities = replace(self.capabilities, fair=True, wakes_waiters=True)
        self._kept: dict[str, Session] = {}
        """By owner: the connection that has the bell of a lock held by this process."""

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """LOCATION must be an alias in DATABASES, of SQLite, MySQL or MariaDB."""
        return check_location(alias, conf, "sqlite3", "mysql")

    @cached_property
    def sql(self) -> Statements:
        """The statements of this kind of database."""
        return Statements(self.pool.vendor)

    @cached_property
    def _way(self) -> type[Polling]:
        return Queueing if self.pool.vendor == "mysql" else Polling

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Take it, or wait for it; see `database_wait`."""
        deadline = time.monotonic() + timeout
        try:
            return self.pool.call(
                lambda session: self._acquire(session, claim, deadline), until=deadline
            )
        except Cancelled:
            return None
        except LockUnavailable:
            if self.pool.vendor == "sqlite" and connections[self.pool.alias].in_atomic_block:
                raise LockMisuse(
                    "On SQLite a lock is taken before the transaction that it guards: this one "
                    "has locked the file for everybody, the lock included."
                ) from None
            raise
        except LockError:
            raise
        except BaseException:
            with suppress(LockError):
                self.release(claim, 0)
            raise

    def _acquire(self, session: Session, claim: Claim, deadline: float) -> Grant | None:
        waiting = self._way(self.sql, session, claim, self.pool)
        while True:
            started = time.monotonic()
            token = waiting.take()
            row = None
            if token is None:
                row = waiting.read()
                if row is None:
                    token = waiting.create()
                elif (
                    row.owner == claim.owner and row.left > 0
                ):  # taken before, but the answer was lost
                    token = row.token
                    started += row.left / SECOND - claim.ttl
                elif row.from_the_future:
                    session.change(self.sql.repair, digest(claim.name))
            if token is not None:
                if waiting.keeps:
                    session.kept = True
                    self._kept[claim.owner] = session
                return Grant(token, started + claim.ttl)
            left = deadline - time.monotonic()
            if left <= 0 or claim.cancelled.is_set():
                waiting.leave()
                return None
            if row is not None:
                waiting.wait(row, left)

    def release(self, claim: Claim, token: int) -> None:
        """Free the row; the first waiter is woken by the same statement."""
        kept = self._kept.pop(claim.owner, None)
        attempts = itertools.count()

        def free(session: Session) -> None:
            again = next(attempts)
            if session.change(self.sql.free, digest(claim.name), claim.owner):
                return
            found = self._read(session, claim.name)
            if again and found and (found.owner, found.token) == ("", token):
                return  # the first attempt did it, and its answer was lost
            # Where somebody had it since, nobody knows: it may have been broken before.
            if session is kept:
                session.change("DO RELEASE_ALL_LOCKS()")
            raise claim.lost()

        if kept is not None:
            kept.kept = False
        self.pool.call(free, first=kept)

    def _read(self, session: Session, name: str) -> Row | None:
        row = session.row(self.sql.read, digest(name))
        return None if row is None else Row(*row)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Move the row's end, unless it has come."""
        started = time.monotonic()
        us = int(ttl * SECOND)
        self._update(claim, self.sql.extend, us, us)
        return started + ttl

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Write the depth of re-entry."""
        self._update(claim, self.sql.set_depth, depth)

    def _update(self, claim: Claim, sql: str, *values: int) -> None:
        args = (*values, digest(claim.name), claim.owner)
        if not self.pool.call(lambda session: session.change(sql, *args)):
            raise claim.lost()

    def inspect(self) -> list[Held]:
        """Every row whose end has not come."""
        rows = self.pool.call(lambda session: session.rows(self.sql.inspect))
        waits = self.pool.call(waiting) if rows and self.pool.vendor == "mysql" else None
        return [
            Held(
                name=name,
                owner=owner,
                token=token,
                expires_in=left / SECOND,
                count=count,
                waiters=None
                if waits is None
                else sum(bell(owner) in wait or queue(self.pool, name) in wait for wait in waits),
            )
            for name, owner, token, left, count in rows
        ]

    def probe(self) -> None:
        """Look at the table."""
        self.pool.call(lambda session: self._read(session, ""))

    def break_lock(self, name: str) -> bool:
        """Free the row whoever has it, and ring for the first waiter in its holder's place."""

        def free(session: Session) -> bool:
            row = self._read(session, name)
            if row is None or not session.change(self.sql.break_, digest(name)):
                return False
            if self.pool.vendor == "mysql":
                found = session.row("SELECT IS_USED_LOCK(%s)", bell(row.owner))
                if found and found[0]:
                    with suppress(LockUnavailable):  # its holder may just have gone
                        session.change(f"KILL {int(found[0])}")
            return True

        return self.pool.call(free)

    def sweep(self) -> int:
        """Delete the rows that were not used for IDLE_SECONDS; return how many.

        Rows of crashed holders are among them. Each is deleted alone, so that no caller waits.
        """
        us = int(IDLE_SECONDS * SECOND)

        def bury(session: Session) -> int:
            dead = session.rows(self.sql.dead, us, us)
            return sum(session.change(self.sql.bury, key, us, us) for (key,) in dead)

        return self.pool.call(bury)

    def close(self) -> None:
        """Close the connections; held locks stay held."""
        self.pool.close()
        while self._kept:
            with suppress(KeyError):
                self._kept.popitem()[1].close()

    def reset_after_fork(self) -> None:
        """In a forked child: the locks and their connections are the parent's."""
        super().reset_after_fork()
        self.pool.reset_after_fork()
        for session in self._kept.values():
            session.abandon()
        self._kept = {}


def check_location(alias: str, conf: Mapping[str, Any], *engines: str) -> list[CheckMessage]:
    """Errors of a LOCATION that names no database, or one of another engine than those."""
    location = conf.get("LOCATION") or DEFAULT_DB_ALIAS
    if location not in connections.settings:
        return [
            Error(
                f"LOCKS[{alias!r}] LOCATION {location!r} is not an alias in DATABASES.",
                id="locking.E051",
            )
        ]
    found = connections.settings[location]["ENGINE"]
    if not found.endswith(engines):
        return [
            Error(
                f"LOCKS[{alias!r}] needs {' or '.join(engines)}, "
                f"but DATABASES[{location!r}] is {found}.",
                id="locking.E052",
            )
        ]
    return []
