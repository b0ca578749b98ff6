"""Tokens and grants on a PostgreSQL whose data is older than what the holders were told."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import chain

import psycopg
import pytest
from pytest_django import DjangoDbBlocker

from devservers import PostgreSql
from devservers.programs import required
from locking.backends.base import Backend
from locking.claims import Claim
from locking.handler import create
from tests.locking.backends.database.database_tools import DATABASE, alias_for
from tests.locking.backends.database.postgresql_tools import migrated
from tests.locking.calls import store_of

SESSION = "locking.backends.postgresql_session.PostgreSQLSessionBackend"
MINUTE = 60_000_000
LAST = "SELECT last_value FROM locking_token"
WRITER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
NEXT = "SELECT locking_next_token()"
NEXT_TOKEN = import_module("locking.migrations.0008_next_token").NEXT_TOKEN


@pytest.fixture(scope="module")
def forgetful(django_db_blocker: DjangoDbBlocker) -> Iterator[PostgreSql]:
    """A server whose commits do not wait for the disk."""
    with (
        PostgreSql(config=["--synchronous_commit=off"]) as server,
        migrated(server, "forgetful", django_db_blocker),
    ):
        yield server


def made(path: str, alias: str) -> Backend:
    return create("made", {"BACKEND": path, "LOCATION": alias}).backend


def grant(backend: Backend, name: str = "n") -> int:
    """Acquire and release; return the token."""
    with store_of(backend).lock(name, timeout=5) as lease:
        return lease.token


def run(program: str, server: PostgreSql, *words: str, text: str = "") -> str:
    """Run a client program of PostgreSQL on a server's database."""
    command = [required(program), *words, server.url]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("where", ["another server", "the same server"])
def test_tokens_grow_through_a_restored_dump(where: str, forgetful: PostgreSql) -> None:
    """As in an upgrade to another version, after grants that the dump does not have."""
    backend = made(SESSION, "forgetful")
    grant(backend)
    dump = run("pg_dump", forgetful)
    told = [grant(backend) for _ in range(40)]
    assert told == sorted(set(told))
    backend.close()
    with PostgreSql() as other:
        target = forgetful if where == "the same server" else other
        with psycopg.connect(target.url, autocommit=True) as root:
            root.execute("DROP SCHEMA public CASCADE")
            root.execute("CREATE SCHEMA public")
        run("psql", target, "--quiet", "--set=ON_ERROR_STOP=1", "-d", text=dump)
        with psycopg.connect(target.url) as root:
            assert root.execute(LAST).fetchone()[0] < told[-1], "nothing was lost"
        with alias_for(target.url, "restored") as alias:
            restored = made(SESSION, alias)
            assert grant(restored) > told[-1]
            restored.close()


@pytest.mark.parametrize("path", [DATABASE, SESSION])
def test_crash_that_loses_commits_undoes_no_grant(path: str, forgetful: PostgreSql) -> None:
    """A row is still held by its holder. The session's lock ended, and its token grows."""
    backend, mine = made(path, "forgetful"), Claim(name="crash", owner="me", ttl=60)
    with psycopg.connect(forgetful.url, autocommit=True) as root:
        root.execute("DROP TABLE IF EXISTS written")
        root.execute("CREATE TABLE written ()")
        root.execute("CHECKPOINT")
        ((writer,),) = root.execute(WRITER).fetchall()
        os.kill(writer, signal.SIGSTOP)  # what is committed from here on does not reach the disk
        first = backend.acquire(mine, 5)
        assert first is not None
        told = max(first.token, *(grant(backend) for _ in range(100)))
        extended = backend.extend(mine, first.token, 90) if path == DATABASE else 0
        root.execute("INSERT INTO written DEFAULT VALUES")
    forgetful.kill()
    forgetful.start()
    with psycopg.connect(forgetful.url) as root:
        assert not root.execute("SELECT * FROM written").fetchall(), "the control is on disk"
    assert grant(backend) > told
    if extended:
        (held,) = (one for one in backend.inspect() if one.name == mine.name)
        assert (held.owner, held.token) == ("me", first.token)
        assert held.expires_in is not None
        assert held.expires_in > 70
    backend.close()


def test_tokens_follow_the_clock_and_grow_without_it(forgetful: PostgreSql) -> None:
    with psycopg.connect(forgetful.url, autocommit=True) as root:
        clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ((now,),) = root.execute(clock).fetchall()
        ((token,),) = root.execute(NEXT).fetchall()
        assert now - MINUTE < token < now + 10 * MINUTE, "a minute for each start of the server"
        root.execute("SELECT setval('locking_token', %s)", [now + 60 * MINUTE])
        ((ahead,),) = root.execute(NEXT).fetchall()
        assert ahead == now + 60 * MINUTE + 1, "the clock is behind"


@pytest.mark.parametrize("is_locked", [True, False])
def test_sessions_that_raise_the_sequence_at_once(is_locked: bool, forgetful: PostgreSql) -> None:
    """No token repeats; without the lock in the function, the control, some do.

    A pause before each raise lets the sessions meet there.
    """
    function = NEXT_TOKEN.replace("token := setval", "PERFORM pg_sleep(0.005); token := setval")
    if not is_locked:
        function = function.replace("PERFORM pg_advisory_lock", "-- ")
    with psycopg.connect(forgetful.url, autocommit=True) as root:
        root.execute(function)

    def mint(_: int) -> list[int]:
        tokens = []
        with psycopg.connect(forgetful.url, autocommit=True) as one:
            for number in range(100):
                if number % 4 == 0:
                    one.execute("SELECT setval('locking_token_origin', 1)")
                tokens += [token for (token,) in one.execute(NEXT).fetchall()]
        return tokens

    try:
        with ThreadPoolExecutor(4) as pool:
            each = list(pool.map(mint, range(4)))
    finally:
        with psycopg.connect(forgetful.url, autocommit=True) as root:
            root.execute(NEXT_TOKEN)
    assert (len(set(chain.from_iterable(each))) == 400) is is_locked
    assert all(tokens == sorted(tokens) for tokens in each) or not is_locked
