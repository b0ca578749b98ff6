"""The bare commands of each service: no lock on that service can be faster."""

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


def _cursor() -> Any:
    """Return a cursor of MySQLdb on a new connection in autocommit mode."""
    import MySQLdb

    return MySQLdb.connect(**connection.get_connection_params() | {"autocommit": True}).cursor()


@system("raw GET_LOCK", "mysql", "floor", session=0.0)
def _get_lock(name: str, ttl: float) -> Handle:
    cursor = _cursor()

    def acquire(wait: float) -> bool:
        cursor.execute("SELECT GET_LOCK(%s, %s)", (name, wait))
        return bool(cursor.fetchone()[0])

    def release() -> None:
        cursor.execute("SELECT RELEASE_LOCK(%s)", (name,))
        cursor.fetchone()

    return Handle(acquire, release)


def _psycopg() -> Any:
    """Return a cursor of psycopg in autocommit mode; it prepares what it often sends."""
    import psycopg

    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True).cursor()


def _row(connect: Callable[[], Any], name: str, ttl: float) -> Handle:
    cursor = connect()
    cursor.execute(
        "CREATE TABLE IF NOT EXISTS floor (name VARCHAR(200) PRIMARY KEY, owner CHAR(32))"
    )
    owner = uuid.uuid4().hex
    return Handle(
        lambda wait: cursor.execute("INSERT INTO floor VALUES (%s, %s)", (name, owner)),
        lambda: cursor.execute("DELETE FROM floor WHERE name=%s AND owner=%s", (name, owner)),
    )


system("INSERT + DELETE", "mysql", "floor", waits=False)(partial(_row, _cursor))
system("INSERT + DELETE, PostgreSQL", "postgresql", "floor", waits=False)(partial(_row, _psycopg))


@system("raw pg_advisory_lock", "postgresql", "floor", waits=False)
def _advisory_lock(name: str, ttl: float) -> Handle:
    cursor = _psycopg()
    key = zlib.crc32(name.encode())

    def call(function: str) -> object:
        return cursor.execute(f"SELECT {function}(%s)", (key,)).fetchone()

    return Handle(lambda wait: call("pg_advisory_lock"), lambda: call("pg_advisory_unlock"))
