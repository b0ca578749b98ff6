"""Threads of one process that share a grant of the lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from devservers.faults.waiting import until
from locking import LockTimeout, policy
from locking.policy import active
from shop.purchase import group_commit
from shop.purchase.group_commit import submit
from tests.shop.making import put_in_force

pytestmark = pytest.mark.django_db


class CountedLock:
    """A lock in memory that counts its grants."""

    def __init__(self, group: Group, timeout: float = 10.0) -> None:
        self.name, self.timeout, self.group = "sale:1", timeout, group

    def __enter__(self) -> object:
        if not self.group.lock.acquire(timeout=self.timeout):
            raise LockTimeout
        self.group.grants += 1
        return self.group.lease

    def __exit__(self, *_: object) -> None:
        self.group.lock.release()


class Group:
    """A leader that is writing, and waiters behind it."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool, self.lock, self.grants = pool, threading.Lock(), 0
        self.lease = SimpleNamespace(lost=False)
        self.is_writing, self.go_on = threading.Event(), threading.Event()
        self.writing, self.most_writing = 0, 0
        self.written: list[list[object]] = []

    def write(
        self, lease: SimpleNamespace, items: Sequence[object], *, stock_id: int
    ) -> Sequence[object]:
        """Write all items or none; "first" blocks until `go_on`, "loses" loses the lock."""
        if "first" in items:
            self.is_writing.set()
            assert self.go_on.wait(10)
        if "loses" in items and len(items) > 1:
            lease.lost = True
            raise ValueError
        self.writing += 1
        self.most_writing = max(self.writing, self.most_writing)
        try:
            for item in items:
                if isinstance(item, BaseException):
                    raise item
            self.written.append(list(items))
            return items
        finally:
            self.writing -= 1

    def submit(self, item: object, timeout: float = 10.0) -> object:
        sale = cast(Any, SimpleNamespace(timeout=timeout, stock_id=1))
        return submit(cast(Any, item), sale=sale)[0]

    def lead(self) -> Future:
        leader = self.pool.submit(self.submit, "first")
        assert self.is_writing.wait(10)
        return leader

    def wait(self, *items: object, timeout: float = 10.0) -> list[Future]:
        futures = []
        for number, item in enumerate(items, start=1):
            futures.append(self.pool.submit(self.submit, item, timeout))
            until(lambda number=number: len(group_commit._queues["sale:1"]) == number)
        return futures


@pytest.fixture
def group(settings, monkeypatch) -> Iterator[Group]:
    settings.PURCHASES_PER_GRANT = 4
    put_in_force("redis")
    monkeypatch.setattr(active, "FRESH", 600)
    monkeypatch.setattr(active, "MAX_AGE", 600)
    policy.current()
    with ThreadPoolExecutor(12) as pool:
        group = Group(pool)
        monkeypatch.setattr(
            group_commit, "sale_lock", lambda sale: CountedLock(group, sale.timeout)
        )
        monkeypatch.setattr(group_commit, "withdraw", group.write)
        for name in ("use_of", "record_lock"):  # the items are no orders
            monkeypatch.setattr(group_commit, name, lambda *_, **__: {})
        yield group
    assert not group_commit._queues, "a thread is still registered as leader"


@pytest.mark.parametrize(("per_grant", "grants"), [(4, 3), (1, 9), (100, 2)])
def test_grant_serves_at_most_purchases_per_grant(group, settings, per_grant, grants) -> None:
    settings.PURCHASES_PER_GRANT = max(per_grant, 2)
    leader = group.lead()
    if per_grant == 1:  # the control: a grant for each item
        settings.PURCHASES_PER_GRANT = 1
        waiters = [group.pool.submit(group.submit, number) for number in range(8)]
    else:
        waiters = group.wait(*range(8))
    group.go_on.set()
    assert [each.result(10) for each in (leader, *waiters)] == ["first", *range(8)]
    assert (group.grants, group.most_writing) == (grants, 1)
    written = [item for items in group.written for item in items]
    assert written == ["first", *range(8)] or per_grant == 1


def test_error_is_raised_for_its_item_only(group, caplog) -> None:
    caplog.set_level("INFO")
    leader = group.lead()
    good, bad, last = group.wait(1, ValueError("mine"), 3)
    group.go_on.set()
    with pytest.raises(ValueError, match="mine"):
        bad.result(10)
    assert [each.result(10) for each in (leader, good, last)] == ["first", 1, 3]
    assert group.written == [["first"], [1], [3]]
    assert group.grants == 3, "after an error the next waiter is promoted"
    assert caplog.messages == [], "a refusal is not worth a log line"


@pytest.mark.parametrize("error", [ValueError(), SystemExit()], ids=repr)
def test_waiters_are_written_after_the_leader_fails(group, error) -> None:
    """The exception, even one that ends the leader's thread, does not reach the waiters."""
    leader = group.lead()
    failed, *waiters = group.wait(error, 1, 2)
    group.go_on.set()
    with pytest.raises(type(error)):
        failed.result(10)
    assert [each.result(10) for each in (leader, *waiters)] == ["first", 1, 2]
    assert group.written == [["first"], [1, 2]]


def test_lost_lease_writes_no_further_item(group) -> None:
    """The group is refused and the lease is lost: the waiter acquires the lock again."""
    leader = group.lead()
    waiters = group.wait("loses", 1)
    group.go_on.set()
    assert [each.result(10) for each in (leader, *waiters)] == ["first", "loses", 1]
    assert group.written == [["first"], ["loses"], [1]]
    assert group.grants == 3


def test_waiter_times_out_while_the_leader_hangs(group) -> None:
    leader = group.lead()
    (hasty,) = group.wait("written after its timeout", timeout=0.05)
    with pytest.raises(LockTimeout):
        hasty.result(10)
    group.go_on.set()
    assert leader.result(10) == "first"
    assert (group.grants, group.written) == (1, [["first"]])


@pytest.mark.parametrize("backend", ["none", "process"])
def test_backend_that_excludes_no_other_machine_is_not_shared(group, backend, monkeypatch) -> None:
    """Otherwise the group would serialise a control without a lock, which must oversell."""
    put_in_force(backend)
    policy.current()
    both = threading.Barrier(2)

    class NoLock(CountedLock):
        def __enter__(self) -> object:
            return self.group.lease

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(group_commit, "sale_lock", lambda _: NoLock(group))
    monkeypatch.setattr(group_commit, "withdraw", lambda *_, **__: [1 + both.wait(10)])
    for each in [group.pool.submit(group.submit, 1) for _ in range(2)]:
        each.result(10)
