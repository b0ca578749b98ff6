"""The SQL of the database backend for MySQL, MariaDB, PostgreSQL and SQLite."""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

TABLE = "locking_lockrow"
SECOND = 1_000_000
"""Times and tokens in the table are microseconds."""
NOW = {
    # NOW() would depend on the time zone, and be an hour wrong or ambiguous once a year.
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    # NOW() would be the start of the transaction: earlier than the end of a wait for the row.
    "postgresql": "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}


@lru_cache(1024)
def digest(text: str) -> str:
    """Return the key of a lock's row, or a part of the name of a user-level lock."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Statements:
    """The SQL of one kind of database.

    On MySQL the holder's connection also has the user-level lock `holder_lock`, which the first
    waiter waits for. The UPDATEs acquire and release it as a side effect, because a statement of
    its own would cost a round trip: MySQL evaluates assignments from left to right, once for each
    row that matched. PostgreSQL evaluates the RETURNING clause once for each row that it changed.
    `queues` is False where waiters poll: on SQLite, and behind a pooler that shares sessions.
    """

    def __init__(self, vendor: str, queues: bool) -> None:
        now = NOW[vendor]
        mysql = vendor == "mysql"
        most, least = ("MAX", "MIN") if vendor == "sqlite" else ("GREATEST", "LEAST")
        token = f"{most}(token + 1, {now})"
        mint = f"LAST_INSERT_ID({token})" if mysql else token
        # The connection's place in the queue is released, and the holder lock is acquired.
        count = "RELEASE_ALL_LOCKS() * 0 + GET_LOCK(%s, 0)" if mysql else "1"
        no_count = "RELEASE_ALL_LOCKS() * 0" if mysql else "0"
        returning = "" if mysql else " RETURNING token"
        mine = "WHERE digest = %s AND owner = %s"
        alive = f"{mine} AND expires_at > {now}"
        clear_reservation = "" if mysql else ", waiter_until = 0"
        take = (
            f"UPDATE {TABLE} SET token = {mint}, owner = %s, ttl = %s, lock_count = {count}, "
            f"expires_at = {now} + %s{clear_reservation} WHERE digest = %s AND expires_at <= {now}"
        )
        self.take = take
        self.take_in_turn = f"{take} AND IS_FREE_LOCK(%s)"
        if not mysql:
            self.take = f"{take} AND (waiter_until <= {now} OR waiter = %s){returning}"
        self.reserve = (
            f"UPDATE {TABLE} SET waiter = %s, waiter_until = {now} + %s "
            f"WHERE digest = %s AND (waiter_until <= {now} OR waiter = %s)"
        )
        values = f"%s, %s, %s, %s, {count.replace('RELEASE_ALL_LOCKS() * 0 + ', '')}, "
        values += f"{f'LAST_INSERT_ID({now})' if mysql else now}, {now} + %s, '', 0"
        insert = "INSERT IGNORE" if mysql else "INSERT"
        conflict = "" if mysql else " ON CONFLICT DO NOTHING"
        self.create = (
            f"{insert} INTO {TABLE} (digest, name, owner, ttl, lock_count, token, "
            f"expires_at, waiter, waiter_until) VALUES ({values}){conflict}{returning}"
        )
        self.read = (
            f"SELECT owner, token, expires_at - {now}, ttl, waiter, waiter_until - {now} "
            f"FROM {TABLE} WHERE digest = %s"
        )
        self.free = (
            f"UPDATE {TABLE} SET owner = '', expires_at = 0, lock_count = {no_count} {alive}"
        )
        self.extend = f"UPDATE {TABLE} SET ttl = %s, expires_at = {now} + %s {alive}"
        self.set_depth = f"UPDATE {TABLE} SET lock_count = %s {alive}"
        self.change_depth = f"{self.set_depth} AND lock_count = %s"
        # If a lease ends later than its ttl allows, the clock was set back: start the ttl now.
        self.repair = (
            f"UPDATE {TABLE} SET expires_at = {least}(expires_at, {now} + ttl), waiter_until = 0 "
            f"WHERE digest = %s"
        )
        self.break_lock = (
            f"UPDATE {TABLE} SET owner = '', expires_at = 0, lock_count = 0, token = token + 1 "
            f"WHERE digest = %s AND expires_at > {now}"
        )
        self.inspect = (
            f"SELECT name, owner, token, expires_at - {now}, lock_count FROM {TABLE} "
            f"WHERE expires_at > {now}"
        )
        self.select_expired = (
            f"SELECT digest FROM {TABLE} WHERE expires_at < {now} - %s AND token < {now} - %s"
        )
        self.delete_expired = (
            f"DELETE FROM {TABLE} "
            f"WHERE digest = %s AND expires_at < {now} - %s AND token < {now} - %s"
        )
        if queues and not mysql:
            self._use_advisory_locks(token, now)

    def _use_advisory_locks(self, token: str, now: str) -> None:
        """Let the statements of PostgreSQL acquire and release advisory locks.

        The RETURNING clause is used and not the SET clause, which PostgreSQL also evaluates for a
        row that another transaction then turns out to have taken. The numbers are the places of
        the arguments on MySQL.
        """
        grant = "RETURNING token, CASE WHEN {0}::text = '' THEN pg_try_advisory_lock({1}) END"
        release = "pg_advisory_unlock_all()"
        take = (
            f"UPDATE {TABLE} SET token = {token}, owner = $1, ttl = $2, lock_count = 1, "
            f"expires_at = {now} + $4 WHERE digest = $5 AND expires_at <= {now}"
        )
        self.take = f"{take} {grant.format(release, '$3')}"
        in_turn = "pg_try_advisory_xact_lock($6)"  # until the statement is committed
        self.take_in_turn = f"{take} AND {in_turn} {grant.format(release, '$3')}"
        self.create = (
            f"INSERT INTO {TABLE} (digest, name, owner, ttl, lock_count, token, expires_at, "
            f"waiter, waiter_until) VALUES ($1, $2, $3, $4, 1, {now}, {now} + $6, '', 0) "
            f"ON CONFLICT DO NOTHING {grant.format(release, '$5')}"
        )
        # A release that a crash of the server undoes ends with the lease: do not wait for the disk.
        lazily = "set_config('synchronous_commit', 'off', TRUE)"
        self.free = f"{self.free} RETURNING {release}, {lazily}"


@lru_cache
def statements(vendor: str, queues: bool) -> Statements:
    """Return the statements of one kind of database."""
    return Statements(vendor, queues)
