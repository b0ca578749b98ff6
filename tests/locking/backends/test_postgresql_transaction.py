"""pg_advisory_xact_lock in the caller's transaction, directly and behind PgBouncer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Literal

import pytest
from django.db import connection, transaction

from devservers import PostgreSql
from devservers.faults.waiting import until
from locking import LockMisuse
from locking.handler import create
from locking.testing.calls import within
from tests.devservers.faults.interception import InterceptingProxy
from tests.devservers.pgbouncer import PgBouncer
from tests.locking.backends.database.postgresql_tools import Superuser, alias, root, server
from tests.locking.calls import store_of
from tests.locking.lock_worker import Forked

__all__ = ["alias", "root", "server"]
CONF = {"BACKEND": "locking.backends.postgresql_transaction.PostgreSQLTransactionBackend"}


class TransactionCommands:
    """A process with one transaction at a time on its default database."""

    def __init__(self) -> None:
        self.backend = create("transaction", CONF).backend
        self.stack = ExitStack()

    def lock(
        self,
        name: str,
        timeout: float,
        until: Literal["block", "commit"] = "commit",
        begin: bool = True,
    ) -> dict[str, Any]:
        if begin:
            self.stack.enter_context(transaction.atomic())
        with store_of(self.backend).lock(name, timeout=timeout, until=until) as lease:
            return {"ok": True, "token": lease.token}

    def lock_in_savepoint(self, name: str) -> dict[str, Any]:
        """Acquire in a block that is rolled back, inside of one that goes on."""
        self.stack.enter_context(transaction.atomic())
        with suppress(ZeroDivisionError), transaction.atomic():
            self.lock(name, 5, begin=False)
            raise ZeroDivisionError
        return {"ok": True, "held": [held.name for held in self.backend.inspect()]}

    def lock_in_read_only(self, name: str) -> dict[str, Any]:
        """Acquire in a transaction that cannot make a token, as on a standby."""
        self.stack.enter_context(transaction.atomic())
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        return self.lock(name, 5, begin=False)

    def settings(self) -> dict[str, Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('lock_timeout')")
            return {"lock_timeout": cursor.fetchone()[0]}

    def commit(self) -> dict[str, Any]:
        self.stack.close()
        return {"held": [held.name for held in self.backend.inspect()]}

    def roll_back(self) -> dict[str, Any]:
        with suppress(ZeroDivisionError), self.stack:
            raise ZeroDivisionError
        return {"held": [held.name for held in self.backend.inspect()]}


Start = Callable[..., Forked]
BOUND = 10.0
"""Seconds for an error on a loaded machine."""


@pytest.fixture(scope="module", params=["direct", "PgBouncer"])
def url(request: pytest.FixtureRequest, server: PostgreSql, alias: str) -> Iterator[str]:
    if request.param == "direct":
        yield server.url
        return
    with PgBouncer(server) as pooler:
        yield pooler.url


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Return a function that starts a process, on this database if no other one is given."""
    started: list[Forked] = []

    def process(other: str = "") -> Forked:
        started.append(Forked(TransactionCommands, databases={"default": other or url}))
        return started[-1]

    yield process
    for worker in started:
        worker.close()


@pytest.mark.parametrize("end", ["commit", "roll_back"])
def test_end_of_the_transaction_wakes_the_waiter(start: Start, root: Superuser, end: str) -> None:
    first, second = start(), start()
    token = first.call("lock", name="sale", timeout=5)["token"]
    assert second.call("lock", name="sale", timeout=0)["error"] == "LockTimeout"
    assert second.call("settings") == {"lock_timeout": "0"}, "the transaction goes on"
    second.send("lock", name="sale", timeout=20, begin=False)
    until(lambda: root.waits() == 1, "the waiter")
    assert first.call(end) == {"held": []}
    assert second.receive()["token"] > token
    assert second.call("settings") == {"lock_timeout": "0"}
    assert second.call("commit") == {"held": []}


@pytest.mark.faults(row=3, backend="postgresql_transaction")
def test_killed_client_frees_the_lock(start: Start, root: Superuser) -> None:
    first, second = start(), start()
    assert first.call("lock", name="killed", timeout=5)["ok"]
    second.send("lock", name="killed", timeout=20)
    until(lambda: root.waits() == 1, "the waiter")
    first.kill()
    assert second.receive()["ok"]


@pytest.mark.faults(row=16, backend="postgresql_transaction")
def test_client_stopped_inside_its_transaction_is_waited_for(start: Start) -> None:
    """Others get an error in bounded time; the stopped client still has the lock."""
    first, second = start(), start()
    assert first.call("lock", name="stopped", timeout=5)["ok"]
    first.pause()
    with within(BOUND):
        assert second.call("lock", name="stopped", timeout=0.5)["error"] == "LockTimeout"
    first.resume()
    assert first.call("commit") == {"held": []}
    assert second.call("lock", name="stopped", timeout=5, begin=False)["ok"]


@pytest.mark.faults(row=10, backend="postgresql_transaction")
@pytest.mark.parametrize("url", ["direct"], indirect=True)
def test_grant_with_lost_reply_ends_with_its_transaction(server: PostgreSql, start: Start) -> None:
    with InterceptingProxy(server.port) as proxy:
        far = start(server.url.replace(f":{server.port}", f":{proxy.port}"))
        assert far.call("settings")["lock_timeout"] == "0"  # connects
        grant = proxy.hold_request(containing=b"pg_advisory_xact_lock")
        far.send("lock", name="lost-reply", timeout=5)
        until(grant.is_held.is_set, "the request")
        proxy.replies_to_lose = 1
        assert grant.deliver()
        assert far.receive()["error"] == "LockUnavailable"
        assert start().call("lock", name="lost-reply", timeout=5)["ok"]


def test_savepoint_that_is_rolled_back_frees_the_lock(start: Start) -> None:
    first, second = start(), start()
    assert first.call("lock_in_savepoint", name="inner") == {"ok": True, "held": []}
    assert second.call("lock", name="inner", timeout=0)["ok"]


def test_server_that_refuses_the_token_is_unavailable(start: Start) -> None:
    reply = start().call("lock_in_read_only", name="read-only")
    assert (reply["error"], "read-only" in reply["message"]) == ("LockUnavailable", True)


def test_use_without_a_transaction_or_until_is_refused(start: Start) -> None:
    one = start()
    reply = one.call("lock", name="outside", timeout=1, begin=False)
    assert reply["error"] == "LockMisuse"
    reply = one.call("lock", name="block", timeout=1, until="block")
    assert (reply["error"], 'until="commit"' in reply["message"]) == ("LockMisuse", True)


def test_shared_locks_are_refused() -> None:
    """A semaphore would be a lock of one holder."""
    backend = create("transaction", {**CONF, "LOCATION": "postgresql"})
    assert not backend.capabilities.shared
    for shared in (
        backend.read_write("n").read,
        lambda: backend.semaphore("n", 2),
    ):
        with pytest.raises(LockMisuse):
            shared()


def test_session_lock_of_the_same_name_is_excluded(start: Start, alias: str) -> None:
    path = "locking.backends.postgresql_session.PostgreSQLSessionBackend"
    session = create("session", {"BACKEND": path, "LOCATION": alias}).backend
    one = start()
    assert one.call("lock", name="shared", timeout=5)["ok"]
    assert not store_of(session).lock("shared").acquire(blocking=False)
    one.call("commit")
    with store_of(session).lock("shared", timeout=5):
        assert one.call("lock", name="shared", timeout=0)["error"] == "LockTimeout"
    session.close()
