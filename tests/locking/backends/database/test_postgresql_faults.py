"""Both locks on a PostgreSQL that fails: FAULTS rows 10, 11, 13 and 17.

Rows 4, 8 and the full disk are in test_postgresql_servers.py.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devservers import PostgreSql
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.base import Backend
from locking.testing.calls import acquire_and_release, in_thread, within
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
