"""The SQL of the database backend, once for each kind of database.

Statements of one name take the same arguments, unless the class says otherwise.
"""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import ClassVar

SECOND = 1_000_000
"""Times and tokens in the table are microseconds."""


@lru_cache(1024)
def digest(text: str) -> str:
    """Return the key of a lock's row, or a part of the name of a user-level lock."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


SAME = {
    "take_over": (
        "UPDATE locking_lockrow SET token = {mint}, owner = %s, ttl = %s, lock_count = 1, "
        "expires_at = {now} + %s WHERE digest = %s AND owner = %s AND token = %s AND "
        "lock_count = 0 AND expires_at > {now}{grant}"
    ),
    "read": (
        "SELECT owner, token, expires_at - {now}, ttl, waiter, waiter_until - {now} "
        "FROM locking_lockrow WHERE digest = %s"
    ),
    "extend": (
        "UPDATE locking_lockrow SET ttl = %s, expires_at = {now} + %s "
        "WHERE digest = %s AND owner = %s AND expires_at > {now}{durably}"
    ),
    "set_depth": (
        "UPDATE locking_lockrow SET lock_count = %s "
        "WHERE digest = %s AND owner = %s AND expires_at > {now}{durably}"
    ),
    "repair": (
        "UPDATE locking_lockrow SET expires_at = {least}(expires_at, {now} + ttl), "
        "waiter_until = 0 WHERE digest = %s"
    ),
    "reserve": (
        "UPDATE locking_lockrow SET waiter = %s, waiter_until = {now} + %s "
        "WHERE digest = %s AND (waiter_until <= {now} OR waiter = %s)"
    ),
    "break_lock": (
        "UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0, "
        "token = token + 1 WHERE digest = %s AND expires_at > {now}"
    ),
    "inspect": (
        "SELECT name, owner, token, expires_at - {now}, lock_count FROM locking_lockrow "
        "WHERE expires_at > {now}"
    ),
    "select_expired": (
        "SELECT digest FROM locking_lockrow WHERE expires_at < {now} - %s AND token < {now} - %s"
    ),
    "delete_expired": (
        "DELETE FROM locking_lockrow "
        "WHERE digest = %s AND expires_at < {now} - %s AND token < {now} - %s"
    ),
}
"""The statements in which only the names of the database's functions differ."""


class Statements:
    """The SQL of one kind of database."""

    now: ClassVar[str]
    """Microseconds since 1970 on the database's clock."""
    mint: ClassVar[str]
    """The next token of a row."""
    least = "LEAST"
    grant = ""
    """The end of a granting statement, which returns the token."""
    durably = ""
    """The end of a statement whose effect must survive a crash."""
    take: ClassVar[str]
    """Acquire a free row."""
    take_in_turn: ClassVar[str]
    """The same, if no waiter has the queue lock; only where waiters queue."""
    create: ClassVar[str]
    """Acquire a lock that has no row yet."""
    take_over: ClassVar[str]
    read: ClassVar[str]
    free: ClassVar[str]
    extend: ClassVar[str]
    set_depth: ClassVar[str]
    repair: ClassVar[str]
    """The clock was set back, so the lease lasts longer than its ttl allows: start the ttl now."""
    break_lock: ClassVar[str]
    inspect: ClassVar[str]
    select_expired: ClassVar[str]
    delete_expired: ClassVar[str]
    reserve: ClassVar[str]
    """Reserve the next turn; only where waiters poll."""

    def __init_subclass__(cls) -> None:
        words = {name: getattr(cls, name) for name in ("now", "mint", "least", "grant", "durably")}
        for name, text in SAME.items():
            setattr(cls, name, text.format(**words))


class SQLite(Statements):
    """Waiters poll."""

    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    mint = f"MAX(token + 1, {now})"
    least = "MIN"
    grant = " RETURNING token"
    take = (
        f"UPDATE locking_lockrow SET token = {mint}, owner = %s, ttl = %s, "
        f"lock_count = 1, expires_at = {now} + %s, waiter_until = 0 WHERE digest = %s AND "
        f"expires_at <= {now} AND (waiter_until <= {now} OR waiter = %s) RETURNING token"
    )
    create = (
        "INSERT INTO locking_lockrow (digest, name, owner, ttl, lock_count, token, expires_at, "
        f"waiter, waiter_until) VALUES (%s, %s, %s, %s, 1, {now}, {now} + %s, '', 0) "
        "ON CONFLICT DO NOTHING RETURNING token"
    )
    free = (
        "UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0 "
        f"WHERE digest = %s AND owner = %s AND expires_at > {now}"
    )


class MySQL(Statements):
    """MySQL and MariaDB.

    The holder's connection also has the user-level lock `holder_lock`, which the first waiter waits
    for. The UPDATEs acquire and release it as a side effect, because a statement of its own would
    cost a round trip: the server evaluates assignments from left to right, once for each row that
    matched. RELEASE_ALL_LOCKS() gives up the connection's place in the queue.
    """

    # NOW() would depend on the time zone, and be an hour wrong or ambiguous once a year.
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    mint = f"LAST_INSERT_ID(GREATEST(token + 1, {now}))"
    take = (
        f"UPDATE locking_lockrow SET token = {mint}, "
        "owner = %s, ttl = %s, lock_count = RELEASE_ALL_LOCKS() * 0 + GET_LOCK(%s, 0), "
        f"expires_at = {now} + %s WHERE digest = %s AND expires_at <= {now}"
    )
    take_in_turn = f"{take} AND IS_FREE_LOCK(%s)"
    create = (
        "INSERT IGNORE INTO locking_lockrow (digest, name, owner, ttl, lock_count, token, "
        "expires_at, waiter, waiter_until) VALUES (%s, %s, %s, %s, GET_LOCK(%s, 0), "
        f"LAST_INSERT_ID({now}), {now} + %s, '', 0)"
    )
    free = (
        "UPDATE locking_lockrow SET owner = '', expires_at = 0, "
        "lock_count = RELEASE_ALL_LOCKS() * 0 "
        f"WHERE digest = %s AND owner = %s AND expires_at > {now}"
    )


class PooledPostgreSQL(Statements):
    """PostgreSQL behind a pooler that shares its sessions: waiters poll, as on SQLite.

    What a holder is told waits for the disk, also where a setting says that a commit need not: a
    crash would otherwise undo it.
    """

    # NOW() would be the start of the transaction: earlier than the end of a wait for the row.
    now = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    mint = f"GREATEST(token + 1, {now})"
    _flush = (
        "set_config('synchronous_commit', "
        "replace(current_setting('synchronous_commit'), 'off', 'local'), TRUE)"
    )
    grant, durably = f" RETURNING token, {_flush}", f" RETURNING {_flush}"
    take = (
        f"UPDATE locking_lockrow SET token = {mint}, owner = %s, ttl = %s, "
        f"lock_count = 1, expires_at = {now} + %s, waiter_until = 0 WHERE digest = %s AND "
        f"expires_at <= {now} AND (waiter_until <= {now} OR waiter = %s){grant}"
    )
    create = (
        "INSERT INTO locking_lockrow (digest, name, owner, ttl, lock_count, token, expires_at, "
        f"waiter, waiter_until) VALUES (%s, %s, %s, %s, 1, {now}, {now} + %s, '', 0) "
        f"ON CONFLICT DO NOTHING{grant}"
    )
    free = (
        "UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0 "
        f"WHERE digest = %s AND owner = %s AND expires_at > {now} "
        # A release that a crash undoes ends with the lease: it does not wait for the disk.
        "RETURNING set_config('synchronous_commit', 'off', TRUE)"
    )


class PostgreSQL(PooledPostgreSQL):
    """The statements also acquire and release `holder_lock`, as on MySQL.

    They do so in the RETURNING clause and not in the SET clause, which PostgreSQL also evaluates
    for a row that another transaction then turns out to have taken. The numbers are the places of
    the arguments on MySQL.
    """

    now, mint = PooledPostgreSQL.now, PooledPostgreSQL.mint
    _take = (
        f"UPDATE locking_lockrow SET token = {mint}, owner = $1, ttl = $2, "
        f"lock_count = 1, expires_at = {now} + $4 WHERE digest = $5 AND expires_at <= {now}"
    )
    _lock = (
        f"{PooledPostgreSQL.grant}, "
        "CASE WHEN pg_advisory_unlock_all()::text = '' THEN pg_try_advisory_lock"
    )
    take = f"{_take}{_lock}($3) END"
    # The queue lock is held until the statement is committed.
    take_in_turn = f"{_take} AND pg_try_advisory_xact_lock($6){_lock}($3) END"
    create = (
        "INSERT INTO locking_lockrow (digest, name, owner, ttl, lock_count, token, expires_at, "
        f"waiter, waiter_until) VALUES ($1, $2, $3, $4, 1, {now}, {now} + $6, '', 0) "
        f"ON CONFLICT DO NOTHING{_lock}($5) END"
    )
    free = f"{PooledPostgreSQL.free}, pg_advisory_unlock_all()"
