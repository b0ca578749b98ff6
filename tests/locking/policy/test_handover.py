"""Switches between real stores: under load, with slow commits, old snapshots and a silent store."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockError, LockUnavailable, lock, policy
from locking.models import LockPolicy
from locking.policy import active, switch, switching
from tests.fault_rows import record_fault, record_outcome
from tests.locking.lock_worker import Forked
from tests.locking.policy.policy_worker import KEEP_SNAPSHOT, PolicyCommands, overlaps

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

AGE, GRACE = 0.1, 1.0
NAMES = ["sale:1", "sale:2", "job:1"]


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
            worker = Forked(PolicyCommands, stores, AGE, databases={"default": database_url})
            stack.callback(worker.close)
            worker.call("contend", NAMES, threads=2, idle=0.01)
            workers.append(worker)
        workers[0].call("contend", NAMES, threads=1, idle=0.01, snapshots=True)
        finished = 0
        for number in range(rounds):
            finished += switch_with_a_fault(number, redis)
            granted = active.clock() + 3 * AGE
            until(lambda granted=granted: active.clock() > granted, "grants of this epoch")
        until(lambda: policy.finish_switch().state == "steady", "the end of the last switch")
        grants = [grant for worker in workers for grant in worker.call("stop")]
    by_epoch = {grant.epoch for grant in grants}
    record_outcome(f"{len(grants)} grants in {len(by_epoch)} epochs, {finished} switches")
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
    monkeypatch.setattr(active, "stored_policy", fail)
    monkeypatch.setattr(active, "FAILURE_PAUSE", 1.0)
    policy.invalidate()
    for _ in range(100):
        with pytest.raises(LockUnavailable):
            policy.current()
    assert len(reads) <= 4, "twice per pause: the connection may have been idle"
    monkeypatch.undo()
    until(_is_readable, "the next read")


def _is_readable() -> bool:
    try:
        return bool(policy.current())
    except LockUnavailable:
        return False
