"""Switches between real stores, with holders and waiters in other processes."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable, lock, policy
from locking.models import LockPolicy
from locking.policy import active, switch
from tests.locking.policy.policy_worker import KEEP_SNAPSHOT, TTL, PolicyWorker, overlaps
from tests.locking.policy.two_backends import apart, row

__all__ = ["apart"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

AGE = 0.4
"""MAX_AGE here, in seconds."""


@pytest.fixture
def stores(settings, monkeypatch) -> dict[str, Any]:
    """Activate Redis; the table of this database is the other backend."""
    return activate(settings, monkeypatch, settings.LOCKS["redis"]["LOCATION"], ttl=TTL, age=AGE)


def activate(settings: Any, patch: Any, redis: str, *, ttl: float, age: float) -> dict[str, Any]:
    """Return LOCKS with two real stores, the first of them active; `age` is MAX_AGE."""
    entry = {"TTL": ttl, "TIMEOUT": 5.0}
    settings.LOCKS = {
        "redis": {
            **entry,
            "BACKEND": settings.LOCKS["redis"]["BACKEND"],
            "LOCATION": redis,
            "OPTIONS": {"PREFIX": f"{uuid4().hex}:"},  # a switch waits for every lock it finds
        },
        "database": {**entry, "BACKEND": settings.LOCKS["database"]["BACKEND"]},
    }
    settings.LOCK_POLICY = {"BACKEND": "redis"}
    patch.setattr(active, "MAX_AGE", age)
    patch.setattr(active, "FRESH", age / 2)
    policy.stored_policy()
    return settings.LOCKS


@pytest.fixture
def worker(stores, database_url) -> Iterator[Callable[[], PolicyWorker]]:
    """Start processes that use the same policy."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(PolicyWorker(database_url, stores, max_age=AGE))


def delay_commit(seconds: float) -> None:
    """Let the next COMMIT of this thread's connection take that long."""
    commit = connection.commit

    def slow() -> None:
        connection.commit = commit
        ended = active.clock() + seconds
        until(lambda: active.clock() >= ended, "the end of the delay")
        commit()

    connection.commit = slow


def test_slow_commit_of_the_announcement_leaves_one_holder(worker) -> None:
    """A1: the drain was measured from before the commit, so it was over when it began."""
    workers = [worker() for _ in range(3)]

    def wait_for_grants(epoch: int, seconds: float = 0.0) -> None:
        ended = time.monotonic() + seconds
        for each in workers:
            until(lambda each=each: epoch in each.epochs(), f"a grant of epoch {epoch}")
        until(lambda: time.monotonic() > ended, "further grants")

    for each in workers:
        each.contend(["sale:1"], idle=0.02)
    wait_for_grants(1)
    for epoch, backend in enumerate(("database", "redis", "database"), start=2):
        delay_commit(1.5 * AGE)
        assert switch(backend=backend).epoch == epoch
        wait_for_grants(epoch, seconds=2 * AGE)
    grants = [grant for each in workers for grant in each.stop()]
    assert {grant.epoch for grant in grants} == {1, 2, 3, 4}
    assert overlaps(grants) == []


def test_transaction_with_an_old_snapshot_sees_the_switch(stores, apart) -> None:
    """A2: it cached the old policy again and again, for the whole process."""
    with connection.cursor() as cursor:
        if connection.vendor in KEEP_SNAPSHOT:
            cursor.execute(KEEP_SNAPSHOT[connection.vendor])
        cursor.execute("BEGIN")
        try:
            cursor.execute("SELECT epoch FROM locking_lockpolicy")
            apart(switch, backend="database", force=True).result(WAIT_TIMEOUT)
            cursor.execute("SELECT epoch FROM locking_lockpolicy")
            assert cursor.fetchone() == (1,), "the snapshot is not old"
            assert policy.current().epoch == 2
            with lock("sale:1") as lease:
                assert lease.backend.alias == "database" or connection.vendor == "sqlite"
        finally:
            cursor.execute("ROLLBACK")
            connection.close()


def test_other_names_do_not_wait_for_a_long_job(worker, apart) -> None:
    """A4: one job that held its own name stopped all callers until the switch was cancelled."""
    job, buyers = worker(), worker()
    job.hold("job:report")
    names = [f"sale:{number}" for number in range(4)]
    buyers.contend(names, threads=4)
    switched: Future = apart(switch, backend="database")
    until(lambda: row().still_held == ["job:report"], "the hand-over")
    waiter = apart(lambda: lock("job:report").acquire(timeout=WAIT_TIMEOUT))
    until(lambda: 2 in buyers.epochs(), "grants of the new backend")
    assert not switched.done()
    assert not waiter.done()
    job.release()
    assert waiter.result(WAIT_TIMEOUT)
    assert switched.result(WAIT_TIMEOUT).backend == "database"
    assert overlaps(buyers.stop()) == []


def test_failed_read_is_shared_for_a_moment(stores, monkeypatch) -> None:
    """A6: each caller asked the database that did not respond, one after the other."""
    reads = []

    def fail() -> LockPolicy:
        reads.append(threading.current_thread())
        raise LockUnavailable

    policy.current()
    monkeypatch.setattr(active, "stored_policy", fail)
    policy.invalidate()
    for _ in range(100):
        with pytest.raises(LockUnavailable):
            policy.current()
    assert len(reads) <= 4, "twice per pause: the connection may have been idle"
    monkeypatch.undo()
    until(partial(_is_readable), "the next read")


def _is_readable() -> bool:
    try:
        return bool(policy.current())
    except LockUnavailable:
        return False
