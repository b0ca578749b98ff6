"""The SQL of the database backend, once for each kind of database.

A statement takes what it needs of `key` (the digest of the lock's name), `name`, `owner`, `ttl`,
`token` and `depth`; and, where waiters queue, of the keys `holder` and `queue` of two user-level
locks. Times and tokens are microseconds since 1970 on the database's clock.

- `take` acquires a free row in turn; `create` acquires a lock that has no row yet.
- `repair`: the clock was set back, so a lease lasts longer than its ttl: start the ttl now.
- `reserve` reserves the next turn, where waiters poll.
- `idle` lists and `delete` deletes rows whose last use is `ttl` ago.
"""

# ruff: noqa: S608 - built from constants only

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

SECOND = 1_000_000
"""Times and tokens in the table are microseconds."""


@lru_cache(1024)
def digest(text: str) -> str:
    """Return the key of a lock's row, or a part of the name of a user-level lock."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


class SQLite:
    """Waiters poll. `now_ns` reads the machine's clock: SQLite would round it to milliseconds."""

    take = """UPDATE locking_lockrow SET token = MAX(token + 1, now_ns() / 1000), owner = %(owner)s,
        ttl = %(ttl)s, lock_count = 1, expires_at = now_ns() / 1000 + %(ttl)s, waiter_until = 0
        WHERE digest = %(key)s AND expires_at <= now_ns() / 1000
        AND (waiter_until <= now_ns() / 1000 OR waiter = %(owner)s) RETURNING token"""
    create = """INSERT INTO locking_lockrow
        (digest, name, owner, ttl, lock_count, token, expires_at, waiter, waiter_until)
        VALUES (%(key)s, %(name)s, %(owner)s, %(ttl)s, 1, now_ns() / 1000,
        now_ns() / 1000 + %(ttl)s, '', 0) ON CONFLICT DO NOTHING RETURNING token"""
    take_over = """UPDATE locking_lockrow SET token = MAX(token + 1, now_ns() / 1000),
        owner = %(owner)s, ttl = %(ttl)s, lock_count = 1, expires_at = now_ns() / 1000 + %(ttl)s
        WHERE digest = %(key)s AND owner = %(sender)s AND token = %(token)s AND lock_count = 0
        AND expires_at > now_ns() / 1000 RETURNING token"""
    free = """UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > now_ns() / 1000"""
    extend = """UPDATE locking_lockrow SET ttl = %(ttl)s, expires_at = now_ns() / 1000 + %(ttl)s
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > now_ns() / 1000"""
    set_depth = """UPDATE locking_lockrow SET lock_count = %(depth)s
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > now_ns() / 1000"""
    _columns = """SELECT name, owner, token, expires_at - now_ns() / 1000, ttl, lock_count, waiter,
        waiter_until - now_ns() / 1000 FROM locking_lockrow"""
    read = f"{_columns} WHERE digest = %(key)s"
    inspect = f"{_columns} WHERE expires_at > now_ns() / 1000"
    repair = """UPDATE locking_lockrow SET expires_at = MIN(expires_at, now_ns() / 1000 + ttl),
        waiter_until = 0 WHERE digest = %(key)s"""
    reserve = """UPDATE locking_lockrow SET waiter = %(waiter)s,
        waiter_until = now_ns() / 1000 + %(ttl)s
        WHERE digest = %(key)s AND (waiter_until <= now_ns() / 1000 OR waiter = %(owner)s)"""
    break_lock = """UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0,
        token = token + 1 WHERE digest = %(key)s AND owner = %(owner)s"""
    _is_idle = "expires_at < now_ns() / 1000 - %(ttl)s AND token < now_ns() / 1000 - %(ttl)s"
    idle = f"SELECT digest FROM locking_lockrow WHERE {_is_idle}"
    delete = f"DELETE FROM locking_lockrow WHERE digest = %(key)s AND {_is_idle}"


class MySQL:
    """MySQL and MariaDB.

    The holder's connection also has the user-level lock `holder`, which the first waiter waits for.
    The UPDATEs acquire and release it as a side effect, because a statement of its own would cost a
    round trip: the server evaluates assignments from left to right, once for each row that matched.
    RELEASE_ALL_LOCKS() gives up the connection's place in the queue. A row is taken in turn: the
    lock `queue` is free, or the connection's own. LAST_INSERT_ID() makes the token a part of the
    server's reply.
    """

    # NOW() would depend on the time zone, and be an hour wrong or ambiguous once a year.
    _now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    take = f"""UPDATE locking_lockrow SET token = LAST_INSERT_ID(GREATEST(token + 1, {_now})),
        owner = %(owner)s, ttl = %(ttl)s,
        lock_count = RELEASE_ALL_LOCKS() * 0 + GET_LOCK(%(holder)s, 0),
        expires_at = {_now} + %(ttl)s WHERE digest = %(key)s AND expires_at <= {_now}
        AND COALESCE(IS_USED_LOCK(%(queue)s), CONNECTION_ID()) = CONNECTION_ID()"""
    create = f"""INSERT IGNORE INTO locking_lockrow
        (digest, name, owner, ttl, lock_count, token, expires_at, waiter, waiter_until)
        VALUES (%(key)s, %(name)s, %(owner)s, %(ttl)s, GET_LOCK(%(holder)s, 0),
        LAST_INSERT_ID({_now}), {_now} + %(ttl)s, '', 0)"""
    take_over = f"""UPDATE locking_lockrow SET token = LAST_INSERT_ID(GREATEST(token + 1, {_now})),
        owner = %(owner)s, ttl = %(ttl)s, lock_count = 1, expires_at = {_now} + %(ttl)s
        WHERE digest = %(key)s AND owner = %(sender)s AND token = %(token)s AND lock_count = 0
        AND expires_at > {_now}"""
    free = f"""UPDATE locking_lockrow SET owner = '', expires_at = 0,
        lock_count = RELEASE_ALL_LOCKS() * 0
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > {_now}"""
    extend = f"""UPDATE locking_lockrow SET ttl = %(ttl)s, expires_at = {_now} + %(ttl)s
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > {_now}"""
    set_depth = f"""UPDATE locking_lockrow SET lock_count = %(depth)s
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > {_now}"""
    _columns = f"""SELECT name, owner, token, expires_at - {_now}, ttl, lock_count, waiter,
        waiter_until - {_now} FROM locking_lockrow"""
    read = f"{_columns} WHERE digest = %(key)s"
    inspect = f"{_columns} WHERE expires_at > {_now}"
    repair = f"""UPDATE locking_lockrow SET expires_at = LEAST(expires_at, {_now} + ttl),
        waiter_until = 0 WHERE digest = %(key)s"""
    reserve = ""
    break_lock = """UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0,
        token = token + 1 WHERE digest = %(key)s AND owner = %(owner)s"""
    _is_idle = f"expires_at < {_now} - %(ttl)s AND token < {_now} - %(ttl)s"
    idle = f"SELECT digest FROM locking_lockrow WHERE {_is_idle}"
    delete = f"DELETE FROM locking_lockrow WHERE digest = %(key)s AND {_is_idle}"


class PostgreSQL:
    """As on MySQL; behind a pooler that shares its sessions, `holder` and `queue` are NULL.

    The statements acquire and release `holder` in the RETURNING clause and not in the SET clause,
    which PostgreSQL also evaluates for a row that another transaction then turns out to have taken.
    `queue` is held until the statement is committed. What a holder is told waits for the disk, also
    where a setting says that a commit need not: a crash would otherwise undo it.
    """

    # NOW() would be the start of the transaction: earlier than the end of a wait for the row.
    _now = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    _durably = """set_config('synchronous_commit',
        replace(current_setting('synchronous_commit'), 'off', 'local'), TRUE)"""
    _granted = f"""RETURNING token, {_durably}, CASE WHEN %(holder)s::bigint IS NOT NULL THEN
        CASE WHEN pg_advisory_unlock_all()::text = '' THEN pg_try_advisory_lock(%(holder)s) END
        END"""
    take = f"""UPDATE locking_lockrow SET token = GREATEST(token + 1, {_now}), owner = %(owner)s,
        ttl = %(ttl)s, lock_count = 1, expires_at = {_now} + %(ttl)s, waiter_until = 0
        WHERE digest = %(key)s AND expires_at <= {_now} AND CASE WHEN %(queue)s::bigint IS NULL
        THEN waiter_until <= {_now} OR waiter = %(owner)s
        ELSE pg_try_advisory_xact_lock(%(queue)s) END {_granted}"""
    create = f"""INSERT INTO locking_lockrow
        (digest, name, owner, ttl, lock_count, token, expires_at, waiter, waiter_until)
        VALUES (%(key)s, %(name)s, %(owner)s, %(ttl)s, 1, {_now}, {_now} + %(ttl)s, '', 0)
        ON CONFLICT DO NOTHING {_granted}"""
    take_over = f"""UPDATE locking_lockrow SET token = GREATEST(token + 1, {_now}),
        owner = %(owner)s, ttl = %(ttl)s, lock_count = 1, expires_at = {_now} + %(ttl)s
        WHERE digest = %(key)s AND owner = %(sender)s AND token = %(token)s AND lock_count = 0
        AND expires_at > {_now} RETURNING token, {_durably}"""
    # A release that a crash undoes ends with the lease: it does not wait for the disk.
    free = f"""UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > {_now}
        RETURNING set_config('synchronous_commit', 'off', TRUE),
        CASE WHEN %(holder)s::bigint IS NOT NULL THEN pg_advisory_unlock_all()::text END"""
    extend = f"""UPDATE locking_lockrow SET ttl = %(ttl)s, expires_at = {_now} + %(ttl)s
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > {_now} RETURNING {_durably}"""
    set_depth = f"""UPDATE locking_lockrow SET lock_count = %(depth)s
        WHERE digest = %(key)s AND owner = %(owner)s AND expires_at > {_now} RETURNING {_durably}"""
    _columns = f"""SELECT name, owner, token, expires_at - {_now}, ttl, lock_count, waiter,
        waiter_until - {_now} FROM locking_lockrow"""
    read = f"{_columns} WHERE digest = %(key)s"
    inspect = f"{_columns} WHERE expires_at > {_now}"
    repair = f"""UPDATE locking_lockrow SET expires_at = LEAST(expires_at, {_now} + ttl),
        waiter_until = 0 WHERE digest = %(key)s"""
    reserve = f"""UPDATE locking_lockrow SET waiter = %(waiter)s, waiter_until = {_now} + %(ttl)s
        WHERE digest = %(key)s AND (waiter_until <= {_now} OR waiter = %(owner)s)"""
    break_lock = """UPDATE locking_lockrow SET owner = '', expires_at = 0, lock_count = 0,
        token = token + 1 WHERE digest = %(key)s AND owner = %(owner)s"""
    _is_idle = f"expires_at < {_now} - %(ttl)s AND token < {_now} - %(ttl)s"
    idle = f"SELECT digest FROM locking_lockrow WHERE {_is_idle}"
    delete = f"DELETE FROM locking_lockrow WHERE digest = %(key)s AND {_is_idle}"


Statements = type[SQLite] | type[MySQL] | type[PostgreSQL]
