"""Switches between real stores: under load, with slow commits, old snapshots and a silent store."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple
from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import connection, transaction

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockError, LockUnavailable, lock, policy
from locking.models import LockPolicy
from locking.policy import active, switch, switching
from tests.fault_rows import record_fault
from tests.locking.lock_worker import Forked

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

AGE, GRACE = 0.1, 1.0
NAMES = ["sale:1", "sale:2", "job:1"]
HOLD, IDLE = 0.004, 0.01
"""Seconds for which a contender holds a lock, at most, and between two locks."""

KEEP_SNAPSHOT = {
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}
"""Let a transaction of this session see the database as it was at its first query."""


class Grant(NamedTuple):
    """The time for which one caller believed that it held a lock; monotonic, of all processes."""

    name: str
    backend: str
    epoch: int
    start: float
    end: float


def overlaps(grants: Sequence[Grant]) -> list[tuple[Grant, Grant]]:
    """Return the pairs of grants of one name that were in force at the same time."""
    found, last = [], dict[str, Grant]()
    for grant in sorted(grants, key=lambda each: each.start):
        before = last.get(grant.name)
        if before is not None and grant.start < before.end:
            found.append((before, grant))
        if before is None or grant.end > before.end:
            last[grant.name] = grant
    return found


class Contenders:
    """The threads of another process, which record when they believed that they held a lock."""

    def __init__(self, locks: dict[str, Any]) -> None:
        settings.LOCKS, settings.LOCK_POLICY = locks, {"BACKEND": next(iter(locks))}
        active.MAX_AGE, active.FRESH = AGE, AGE / 2
        self._ended, self._threads = threading.Event(), ThreadPoolExecutor()
        self._running: list[Future[list[Grant]]] = []

    def contend(self, *kinds: str) -> None:
        """Acquire and release in threads; those with a "snapshot" in transactions that last."""
        block = {"snapshot": self._old_snapshot, "plain": nullcontext}
        self._running += [self._threads.submit(self._contend, block[kind]) for kind in kinds]

    def _contend(self, block: Callable[[], AbstractContextManager[None]]) -> list[Grant]:
        grants: list[Grant] = []
        try:
            while not self._ended.is_set():
                with block():
                    began = time.monotonic()
                    while time.monotonic() < began + 0.5 and not self._ended.wait(IDLE):
                        with suppress(LockUnavailable):
                            grants += self._once()
        finally:
            connection.close()
        return grants

    @contextmanager
    def _old_snapshot(self) -> Iterator[None]:
        """Run the block in a transaction that sees the policy as it is now until its end."""
        connection.ensure_connection()
        if connection.vendor in KEEP_SNAPSHOT:
            with connection.cursor() as cursor:
                cursor.execute(KEEP_SNAPSHOT[connection.vendor])
        else:
            connection.transaction_mode = "DEFERRED"
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT backend FROM locking_lockpolicy")
            yield

    def _once(self) -> list[Grant]:
        held = lock(random.choice(NAMES), until="block")
        if not held.acquire(timeout=10):
            return []
        lease, start = held.lease, time.monotonic()
        time.sleep(random.uniform(0, HOLD))
        end = max(start, min(time.monotonic(), lease.deadline))
        with suppress(LockError):
            held.release()
        return [Grant(lease.name, lease.backend.alias, lease.epoch, start, end)]

    def stop(self) -> list[Grant]:
        """End the contenders; return their grants."""
        self._ended.set()
        return [grant for one in self._running for grant in one.result()]


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def stores(settings, monkeypatch, redis) -> dict[str, Any]:
    """Activate Redis; the table of this database is the other backend."""
    entry = {"TTL": 1.0, "TIMEOUT": 5.0}
    settings.LOCKS = {
        "redis": {
            **entry,
            "BACKEND": settings.LOCKS["redis"]["BACKEND"],
            "LOCATION": redis.url,
            "OPTIONS": {"PREFIX": f"{uuid4().hex}:"},  # a switch waits for every lock it finds
        },
        "database": {**entry, "BACKEND": settings.LOCKS["database"]["BACKEND"]},
    }
    settings.LOCK_POLICY = {"BACKEND": "redis"}
    monkeypatch.setattr(switching, "SWITCH_GRACE", GRACE)
    monkeypatch.setattr(active, "MAX_AGE", AGE)
    monkeypatch.setattr(active, "FRESH", AGE / 2)
    policy.stored_policy()
    return settings.LOCKS


def delay_commit(seconds: float) -> None:
    """Let the next COMMIT of this thread's connection take that long."""
    commit = connection.commit

    def slow() -> None:
        connection.commit = commit
        ended = active.clock() + seconds
        until(lambda: active.clock() >= ended, "the end of the delay")
        commit()

    connection.commit = slow


def switch_with_a_fault(number: int, redis: Redis) -> bool:
    """Switch to the other backend during one of three faults; return False if it was refused."""
    fault = ("slow commit", "store stopped", "none")[number % 3]
    target = {"redis": "database", "database": "redis"}[policy.stored_policy().backend]
    if fault == "slow commit":
        delay_commit(random.uniform(AGE, 3 * AGE))
        record_fault(fault)
    try:
        if fault != "store stopped":
            switch(backend=target)
            return True
        switch(backend=target, wait=False)
        redis.pause()
        try:
            ended = active.clock() + random.uniform(0, 5 * AGE)
            until(lambda: active.clock() > ended, "the end of the outage")
        finally:
            redis.resume()
        policy.finish_switch()
        return True
    except LockError:
        return False


@pytest.mark.faults(row=25, backend="redis, database", fired="switched with old snapshots")
@pytest.mark.parametrize("rounds", [6, pytest.param(200, marks=pytest.mark.long)])
def test_switches_with_faults_never_have_two_holders(stores, database_url, redis, rounds) -> None:
    with ExitStack() as stack:
        workers = []
        for _ in range(3):
            worker = Forked(Contenders, stores, databases={"default": database_url})
            stack.callback(worker.close)
            worker.call("contend", "plain", "plain")
            workers.append(worker)
        workers[0].call("contend", "snapshot")
        finished = 0
        for number in range(rounds):
            finished += switch_with_a_fault(number, redis)
            granted = active.clock() + 3 * AGE
            until(lambda granted=granted: active.clock() > granted, "grants of this epoch")
        until(lambda: policy.finish_switch().state == "steady", "the end of the last switch")
        grants = [grant for worker in workers for grant in worker.call("stop")]
    assert overlaps(grants) == []
    assert finished >= rounds // 2
    # In few rounds on a busy machine, one backend may have had no turn.
    assert {grant.backend for grant in grants} == set(stores) or rounds < 200


def test_transaction_with_an_old_snapshot_sees_the_switch(stores, apart) -> None:
    """It cached the old policy again and again, for the whole process."""
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


def test_failed_read_is_shared_for_a_moment(stores, monkeypatch) -> None:
    """Each caller asked the database that did not respond, one after the other."""
    reads = []

    def fail() -> LockPolicy:
        reads.append(threading.current_thread())
        raise LockUnavailable

    policy.current()
    policy.invalidate()
    once = Mock(side_effect=[LockUnavailable, LockPolicy()])
    monkeypatch.setattr(active, "stored_policy", once)
    assert policy.current(), "the server had closed an idle connection"
    monkeypatch.setattr(active, "stored_policy", fail)
    monkeypatch.setattr(active, "FAILURE_PAUSE", WAIT_TIMEOUT)
    policy.invalidate()
    for _ in range(100):
        with pytest.raises(LockUnavailable):
            policy.current()
    assert len(reads) <= 2, "twice: the connection may have been idle"
    monkeypatch.undo()
    policy.invalidate()
    assert policy.current()
