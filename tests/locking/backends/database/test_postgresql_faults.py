"""Both locks on a PostgreSQL that fails: FAULTS rows 10, 11, 13 and 17.

Rows 4, 8 and the full disk are in test_postgresql_servers.py.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from devservers import PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockError, LockUnavailable
from locking.backends.base import Backend
from locking.claims import Claim
from locking.testing.calls import acquire_and_release, in_thread, within
from tests.devservers.faults.interception import InterceptingProxy
from tests.fault_rows import SLACK
from tests.locking.backends.database.database_tools import alias_for, short_response_timeout
from tests.locking.backends.database.postgresql_tools import (
    BOTH,
    ROW_LOCK,
    Made,
    Superuser,
    alias,
    made,
    root,
    server,
)
from tests.locking.calls import store_of

__all__ = ["alias", "made", "root", "server", "short_response_timeout"]


@pytest.fixture
def proxy(server: PostgreSql) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def far(server: PostgreSql, alias: str, proxy: InterceptingProxy, made: Made) -> Iterator[Backend]:
    """The lock through the proxy."""
    with alias_for(server.url.replace(f":{server.port}", f":{proxy.port}"), "far") as far:
        yield made(far)


@pytest.mark.faults(row=10)
@BOTH
def test_grant_with_lost_reply_is_kept_or_repeated(
    store: str, far: Backend, proxy: InterceptingProxy, alias: str, made: Made
) -> None:
    """The row is read back; the session ended with its lock, and another one gets it."""
    with store_of(far).lock("lost-reply", timeout=5) as first:
        pass
    claim = Claim(name="lost-reply", owner="me", ttl=30)
    proxy.replies_to_lose = 1
    grant = far.acquire(claim, WAIT_TIMEOUT)
    assert grant is not None
    assert grant.token > first.token
    assert not in_thread(acquire_and_release, store_of(made(alias)), "lost-reply", 0)
    far.release(claim, grant.token)
    assert acquire_and_release(store_of(made(alias)), "lost-reply", 5)


@pytest.mark.faults(row=11)
@BOTH
def test_late_acquisition_is_harmless(
    store: str,
    far: Backend,
    proxy: InterceptingProxy,
    alias: str,
    made: Made,
    short_response_timeout: None,
) -> None:
    """What the server grants to a client that gave up ends with its connection or lease."""
    far.probe()
    claim = Claim(name="late", owner="late", ttl=1)
    proxy.hold_requests()
    with within(10), pytest.raises(LockUnavailable):
        far.acquire(claim, 0)
    proxy.resume()
    with within(1 + SLACK):
        assert acquire_and_release(store_of(made(alias)), "late", WAIT_TIMEOUT)
    with suppress(LockError):
        far.release(claim, 0)


@pytest.mark.faults(row=13)
@BOTH
def test_waiter_with_a_lost_connection_waits_again(
    store: str, alias: str, made: Made, root: Superuser
) -> None:
    backend = made(alias)
    with ThreadPoolExecutor(1) as pool, store_of(backend).lock("requeued", ttl=60, timeout=5):
        waiter = pool.submit(acquire_and_release, store_of(backend), "requeued")
        until(lambda: root.waits() == 1, "the waiter")
        sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        [(pid,)] = root(sql)
        root("SELECT pg_terminate_backend(%s)", pid)
        until(lambda: [row for row in root(sql) if row != (pid,)], "the waiter queueing again")
        assert not waiter.done()
    assert waiter.result(WAIT_TIMEOUT)
    until(lambda: root.waits() == 0, "an empty queue")


@pytest.fixture
def app(server: PostgreSql, alias: str, root: Superuser, made: Made) -> Iterator[Backend]:
    """The lock of a user without administrator rights, so limits apply."""
    root("DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    root("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
    root("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app")
    with alias_for(server.url.replace("postgres@", "app@"), "app") as user:
        yield made(user)


def refused(backend: Backend, text: str, name: str) -> None:
    with within(10), pytest.raises(LockUnavailable, match=text):
        store_of(backend).lock(name).acquire(timeout=0.5)
    assert not store_of(backend).held


@pytest.mark.parametrize(
    ("fault", "repair", "text"),
    [
        ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", "too many connections"),  # 53300
        (
            "SET default_transaction_read_only = on",
            "RESET default_transaction_read_only",
            "read-only transaction",  # 25006
        ),
        ("NOLOGIN", "LOGIN", "not permitted to log in"),  # 28000
    ],
    ids=["53300", "25006", "28000"],
)
@pytest.mark.faults(row=17)
@BOTH
def test_refusal_is_reported_and_passes(
    store: str, app: Backend, root: Superuser, alias: str, fault: str, repair: str, text: str
) -> None:
    """Row 17: an error in bounded time, never a grant, and recovery afterwards."""
    root(f"ALTER ROLE app {fault}")
    try:
        refused(app, text, "refused")
        until(lambda: not advisory(root), "no lock left behind")
    finally:
        root(f"ALTER ROLE app {repair}")
    assert in_thread(acquire_and_release, store_of(app), "refused", 5)


def advisory(root: Superuser) -> list[tuple[Any, ...]]:
    return root("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")


@pytest.mark.faults(row=17)
@BOTH
def test_wrong_password_is_reported(
    store: str, app: Backend, server: PostgreSql, root: Superuser
) -> None:
    hba = server.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{before}")
    root("ALTER ROLE app PASSWORD 'right'")
    root("SELECT pg_reload_conf()")
    try:
        until(lambda: not connects(app), "the new rules")
        refused(app, "password", "password")
    finally:
        hba.write_text(before)
        root("SELECT pg_reload_conf()")
    until(lambda: connects(app), "the old rules")
    assert in_thread(acquire_and_release, store_of(app), "password", 5)


def connects(backend: Backend) -> bool:
    backend.close()
    try:
        backend.probe()
    except LockUnavailable:
        return False
    return True


@pytest.mark.faults(row=17)
@pytest.mark.parametrize("state", ["40P01", "40001"])
@pytest.mark.parametrize("store", [ROW_LOCK])
def test_rolled_back_statement_is_retried(
    store: str, app: Backend, root: Superuser, state: str
) -> None:
    assert in_thread(acquire_and_release, store_of(app), "dead", 5)
    root("CREATE SEQUENCE refusals")  # it keeps its value in a rollback
    root(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
        f"PERFORM nextval('refusals'); RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"
    )
    root(
        "CREATE TRIGGER refuse BEFORE UPDATE ON locking_lockrow "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(acquire_and_release, store_of(app), "dead")
            until(lambda: root("SELECT last_value FROM refusals")[0][0] > 2, "further attempts")
            assert not waiter.done()
            root("DROP FUNCTION refuse CASCADE")
            assert waiter.result(WAIT_TIMEOUT)
    finally:
        root("DROP FUNCTION IF EXISTS refuse CASCADE")
        root("DROP SEQUENCE refusals")
