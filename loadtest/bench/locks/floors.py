"""The bare commands of each service: the baseline of its locks."""

import os
import uuid
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection
from kazoo.client import KazooClient
from redis import Redis

from loadtest.bench.locks.systems import Handle, system

DELETE_IF_MINE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
TABLE = "CREATE TABLE IF NOT EXISTS floor (name VARCHAR(200) PRIMARY KEY, owner CHAR(32))"
ROW = (
    "INSERT INTO floor VALUES (%(name)s, %(owner)s)",
    "DELETE FROM floor WHERE name = %(name)s AND owner = %(owner)s",
)


@system("SET NX PX + EVALSHA", "redis", "floor", waits=False)
def _set_nx(name: str, ttl: float) -> Handle:
    client = Redis.from_url(settings.REDIS_URL)
    delete = client.register_script(DELETE_IF_MINE)
    owner = uuid.uuid4().hex
    return Handle(
        lambda wait: client.set(name, owner, nx=True, px=int(ttl * 1000)),
        lambda: delete([name], [owner]),
    )


@system("write all five, read all five", "redlock", "floor", waits=False)
def _fan_out(name: str, ttl: float) -> Handle:
    clients = [Redis.from_url(url) for url in settings.REDLOCK_URLS]
    masters = [client.connection_pool.get_connection() for client in clients]
    digests = [client.script_load(DELETE_IF_MINE) for client in clients]
    owner = uuid.uuid4().hex

    def ask_all(*command: object) -> bool:
        for master in masters:
            master.send_command(*command)  # type: ignore[no-untyped-call]
        answers = [master.read_response() for master in masters]
        return all(answers)

    return Handle(
        lambda wait: ask_all("SET", name, owner, "NX", "PX", int(ttl * 1000)),
        lambda: ask_all("EVALSHA", digests[0], 1, name, owner),
    )


@system("create + delete", "zookeeper", "floor", waits=False)
def _create_delete(name: str, ttl: float) -> Handle:
    client = KazooClient(settings.ZOOKEEPER_HOSTS)
    client.start()
    client.ensure_path(f"/floor/{name}")
    made: list[str] = []

    def acquire(wait: float) -> bool:
        made.append(client.create(f"/floor/{name}/", ephemeral=True, sequence=True))
        return True

    return Handle(acquire, lambda: client.delete(made.pop()))


def _mysql() -> Any:
    """Return a cursor of MySQLdb on a new connection in autocommit mode."""
    import MySQLdb

    return MySQLdb.connect(**connection.get_connection_params() | {"autocommit": True}).cursor()


def _psycopg() -> Any:
    """Return a cursor of psycopg in autocommit mode; it prepares what it often sends."""
    import psycopg

    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True).cursor()


def _sql(
    connect: Callable[[], Any], acquire: str, release: str, table: str, name: str, ttl: float
) -> Handle:
    cursor = connect()
    if table:
        cursor.execute(table)
    given = {"name": name, "owner": uuid.uuid4().hex, "key": zlib.crc32(name.encode())}

    def run(sql: str, wait: float = 0.0) -> bool:
        cursor.execute(sql, given | {"wait": wait})
        return cursor.description is None or cursor.fetchone()[0] not in (0, False)

    return Handle(partial(run, acquire), partial(run, release))


_ADVISORY = "SELECT pg_advisory_lock(%(key)s)", "SELECT pg_advisory_unlock(%(key)s)"
_NAMED = "SELECT GET_LOCK(%(name)s, %(wait)s)", "SELECT RELEASE_LOCK(%(name)s)"
_floor = partial(system, role="floor", waits=False)
system("raw GET_LOCK", "mysql", "floor", session=0.0)(partial(_sql, _mysql, *_NAMED, ""))
_floor("INSERT + DELETE", "mysql")(partial(_sql, _mysql, *ROW, TABLE))
_floor("INSERT + DELETE, PostgreSQL", "postgresql")(partial(_sql, _psycopg, *ROW, TABLE))
_floor("raw pg_advisory_lock", "postgresql")(partial(_sql, _psycopg, *_ADVISORY, ""))
