"""A lock acquired inside a transaction is refused: it would end before the transaction."""

from __future__ import annotations

import asyncio

import pytest
from django.db import OperationalError, connection, transaction
from django.test import TestCase

from locking import LockLost, LockMisuse, lock, locks, policy, single_flight
from locking.idempotency import Attempt
from locking.testing.calls import in_thread, passes_in_child
from tests.locking.scripted import scripted, unavailable

every_lock = pytest.mark.parametrize(
    "make",
    [lambda **options: locks["redis"].lock("report:7", **options), lambda **o: lock("a:7", **o)],
    ids=["named backend", "active backend"],
)
committing = pytest.mark.django_db(transaction=True)


@committing
@every_lock
def test_lock_inside_a_transaction_is_refused(make):
    policy.current()  # SQLite could not write the first policy inside the transaction
    with transaction.atomic():
        with pytest.raises(LockMisuse, match='until="commit"'), make():
            pass
        with pytest.raises(LockMisuse, match="Acquire it before the transaction"):
            make().acquire()
        assert not make().locked()


@committing
@every_lock
def test_lock_around_a_transaction_is_entered_again_inside(make):
    guard = make()
    with guard, transaction.atomic(), make() as lease:
        assert lease.count == 2


@committing
def test_lost_lock_rolls_its_transaction_back():
    store, ended = scripted(), []
    with pytest.raises(LockLost), transaction.atomic():  # noqa: PT012 - the block rolls back
        transaction.on_commit(lambda: ended.append("committed"))
        with store.lock("a", until="commit") as lease:
            lease.mark_lost()
    assert ended == []


@committing
def test_lock_that_was_handed_over_rolls_nothing_back(backend):
    with transaction.atomic(), backend.lock("a", until="commit") as lease:
        ticket = lease.hand_over()
    with backend.take_over(ticket, until="block"):
        pass
    assert not backend.inspect()


@committing
def test_release_that_fails_after_the_commit_drops_no_other_callback(caplog):
    store, called = scripted(), []
    with transaction.atomic():
        with store.lock("a", until="commit"):
            store.backend.then("release", unavailable)
        transaction.on_commit(lambda: called.append("later"))
    assert called == ["later"]
    assert "not released cleanly" in caplog.text


@committing
def test_forked_child_releases_nothing_of_its_parents_transaction(backend):
    with transaction.atomic():
        with backend.lock("a", until="commit") as lease:
            pass

        def releases_nothing() -> bool:
            lease.release()
            return not backend.backend.times("release")

        assert passes_in_child(releases_nothing)
        assert backend.inspect()


@committing
@pytest.mark.parametrize("name", ["report:7", ["report:7", "report:8"]])
def test_task_cannot_wait_for_a_commit(name):
    async def main() -> None:
        make = locks["redis"].lock if isinstance(name, str) else locks["redis"].all_of
        async with make(name, until="commit"):
            pass

    with pytest.raises(LockMisuse, match="a task has no transaction"):
        asyncio.run(main())


@committing
def test_idempotent_request_inside_a_transaction_is_refused():
    """Its key would be free before the response is committed, and the effect happen twice."""
    attempt = Attempt(user=1, key="k", request=b"")
    with transaction.atomic(), pytest.raises(LockMisuse), attempt:
        pass


@committing
def test_value_is_built_inside_a_transaction():
    with transaction.atomic():
        assert single_flight.get_or_build("built:7", lambda: 42, ttl=1) == 42


READ = "SELECT balance FROM account"


@pytest.fixture
def account():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE account (balance INTEGER)")
        cursor.execute("INSERT INTO account VALUES (10)")
        yield cursor
    connection.close()  # its isolation level, too
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE account")


def withdraw_in_another_process() -> None:
    with locks["redis"].lock("account:1"), connection.cursor() as cursor:
        cursor.execute("UPDATE account SET balance = balance - 1")
    connection.close()


@committing
@pytest.mark.only("mysql")
@pytest.mark.parametrize(
    ("isolation", "refuses", "reads_first", "suffix", "left"),
    [
        ("REPEATABLE READ", "OFF", True, "", 9),  # the other withdrawal is overwritten
        ("REPEATABLE READ", "ON", True, "", None),  # error 1020
        ("REPEATABLE READ", "OFF", True, "FOR UPDATE", 8),
        ("REPEATABLE READ", "OFF", False, "", 8),
        ("REPEATABLE READ", "ON", False, "", 8),
        ("READ COMMITTED", "ON", True, "", 8),
    ],
)
def test_lock_until_commit_after_the_snapshot(
    account, isolation, refuses, reads_first, suffix, left
):
    """A transaction that has read before it acquires reads what was before the former holder."""
    account.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    account.execute(f"SET SESSION innodb_snapshot_isolation = {refuses}")

    def withdraw() -> None:
        with transaction.atomic():
            if reads_first:
                account.execute(READ)
            in_thread(withdraw_in_another_process)
            with locks["redis"].lock("account:1", timeout=5, until="commit"):
                account.execute(f"{READ} {suffix}")
                account.execute("UPDATE account SET balance = %s", [account.fetchone()[0] - 1])

    if left is None:
        with pytest.raises(OperationalError, match="1020"):
            withdraw()
    else:
        withdraw()
    assert not locks["redis"].lock("account:1").locked()
    account.execute(READ)
    assert account.fetchone()[0] == (left or 9)


class TestInDjangosTestCase(TestCase):
    """Its own transaction surrounds the whole test and does not count."""

    def test_only_own_transaction_is_accepted(self) -> None:
        with locks["redis"].lock("report:7") as lease:
            lease.check()
        with transaction.atomic(), pytest.raises(LockMisuse):
            locks["redis"].lock("report:7").acquire()
        with locks["redis"].lock("report:7", until="commit"):
            pass
        assert not locks["redis"].lock("report:7").locked()
