"""pg_advisory_xact_lock in the caller's own transaction, whose end releases it (ADR 17).

It excludes the locks of `postgresql_session`, and works behind a pooler that shares sessions.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.utils.translation import gettext_noop

from locking.backends.database.base import DatabaseLocks
from locking.backends.database.postgresql import (
    LOCK_TIMEOUT,
    MINT,
    PostgreSQLSession,
)
from locking.backends.database.session import LONGEST_WAIT, Session
from locking.backends.database.session_locks import lock_name
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockMisuse, LockUnavailable

ACQUIRE = (
    f"SELECT {MINT}, set_config('lock_timeout', before, TRUE) "  # noqa: S608 - constants only
    "FROM (SELECT current_setting('lock_timeout') AS before OFFSET 0) AS setting "
    "WHERE CASE WHEN set_config('lock_timeout', %s, TRUE) IS NOT NULL "
    "THEN pg_advisory_xact_lock(%s)::text END = ''"
)


class PostgreSQLTransactionBackend(DatabaseLocks[PostgreSQLSession]):
    """A lock until COMMIT or ROLLBACK. LOCATION is the default database."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary=gettext_noop("pg_advisory_xact_lock: ends with the caller's own transaction."),
        exclusion="machines",
        session_bound=True,
        fencing=True,
        tokens_outlive_failover=True,
        wakes_waiters=True,
    )
    vendors = ("postgresql",)

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._blocks: dict[str, tuple[object, Held]] = {}
        """By owner: the atomic block that acquired the lock, and the lock."""

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the server's queue, in a savepoint: the transaction survives a timeout."""
        wrapper = connections[self.pool.alias]
        if self.pool.alias != DEFAULT_DB_ALIAS or not wrapper.in_atomic_block:
            raise LockMisuse(
                f"{self.alias}: acquire {claim.name!r} inside transaction.atomic() of the default "
                'database, with until="commit".'
            )
        ms = str(max(1, int(min(timeout, LONGEST_WAIT) * 1000)))
        key = PostgreSQLSession.key(lock_name(self.pool, claim.name))
        try:
            with transaction.atomic(), wrapper.cursor() as cursor:
                cursor.execute(ACQUIRE, (ms, key))
                token = int(cursor.fetchone()[0])
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", "") != LOCK_TIMEOUT:
                raise LockUnavailable(f"The database refused the lock: {error}") from error
            return None
        held = Held(name=claim.name, owner=claim.owner, token=token)
        self._blocks[claim.owner] = wrapper.atomic_blocks[-1], held
        return Grant(token, math.inf)

    def release(self, claim: Claim, token: int) -> None:
        """Check that the transaction has ended, which released the lock."""
        block, _held = self._blocks.pop(claim.owner, (None, None))
        if block in connections[self.pool.alias].atomic_blocks:
            raise LockMisuse(f'{claim.name!r} ends with its transaction: give until="commit".')

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Return infinity: the lock has no lease."""
        return math.inf

    def inspect(self) -> list[Held]:
        """Return this process's locks."""
        return [held for _block, held in list(self._blocks.values())]

    def break_lock(self, name: str) -> bool:
        """Kill the session whose transaction has the lock."""

        def kill(session: Session) -> bool:
            assert isinstance(session, PostgreSQLSession)
            return session.kill_holder(lock_name(self.pool, name))

        return self.pool.call(kill)
