"""Buyers of one process who share a grant of the lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from loadtest.faults.waiting import until
from locking import LockTimeout, policy
from shop.purchase import group_commit as line
from shop.purchase.group_commit import serve
from tests.shop.making import put_in_force

pytestmark = pytest.mark.django_db


class Guard:
    """A lock in memory, that counts its grants."""

    def __init__(self, shop: Shop, timeout: float = 10.0) -> None:
        self.name, self.timeout, self.shop = "sale:1", timeout, shop

    def __enter__(self) -> object:
        if not self.shop.lock.acquire(timeout=self.timeout):
            raise LockTimeout
        self.shop.grants += 1
        return self.shop.lease

    def __exit__(self, *_: object) -> None:
        self.shop.lock.release()


class Shop:
    """A leader at work, and as many behind him as a test wants."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool, self.lock, self.grants = pool, threading.Lock(), 0
        self.lease = SimpleNamespace(lost=False)
        self.at_work, self.go_on = threading.Event(), threading.Event()
        self.at_once, self.most_at_once = 0, 0
        self.written: list[list[object]] = []

    def write(self, whats: Sequence[object], lease: SimpleNamespace) -> None:
        """All of them or none; "first" keeps everybody waiting, "loses" the lock and the group."""
        if "first" in whats:
            self.at_work.set()
            assert self.go_on.wait(10)
        if "loses" in whats and len(whats) > 1:
            lease.lost = True
            raise ValueError
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            for what in whats:
                if isinstance(what, BaseException):
                    raise what
            self.written.append(list(whats))
        finally:
            self.at_once -= 1

    def serve(self, what: object, timeout: float = 10.0) -> object:
        serve(Guard(self, timeout), what, self.write)
        return what

    def lead(self) -> Future:
        leading = self.pool.submit(self.serve, "first")
        assert self.at_work.wait(10)
        return leading

    def follow(self, *whats: object, timeout: float = 10.0) -> list[Future]:
        futures = []
        for number, what in enumerate(whats, start=1):
            futures.append(self.pool.submit(self.serve, what, timeout))
            until(lambda number=number: len(line._lines["sale:1"]) == number)
        return futures


@pytest.fixture
def shop(settings, monkeypatch):
    settings.PURCHASES_PER_GRANT = 4
    put_in_force("redis")
    monkeypatch.setattr(policy, "FRESH", 600)
    monkeypatch.setattr(policy, "MAX_AGE", 600)
    policy.current()
    with ThreadPoolExecutor(12) as pool:
        yield Shop(pool)
    assert not line._lines, "somebody is still said to lead"


def test_those_who_wait_together_are_written_together(shop) -> None:
    leading = shop.lead()
    others = shop.follow(1, 2, 3)
    shop.go_on.set()
    assert [each.result(10) for each in (leading, *others)] == ["first", 1, 2, 3]
    assert shop.written == [["first"], [1, 2, 3]]
    assert (shop.grants, shop.most_at_once) == (2, 1)


@pytest.mark.parametrize(("per_grant", "grants"), [(4, 3), (1, 9), (100, 2)])
def test_a_grant_serves_so_many_and_then_others_have_a_chance(shop, settings, per_grant, grants):
    settings.PURCHASES_PER_GRANT = max(per_grant, 2)
    leading = shop.lead()
    if per_grant == 1:  # the control: each for himself
        settings.PURCHASES_PER_GRANT = 1
        others = [shop.pool.submit(shop.serve, number) for number in range(8)]
    else:
        others = shop.follow(*range(8))
    shop.go_on.set()
    for each in (leading, *others):
        each.result(10)
    assert (shop.grants, shop.most_at_once) == (grants, 1)
    written = [what for group in shop.written for what in group]
    assert written == ["first", *range(8)] or per_grant == 1


def test_an_error_is_its_own_buyers_and_the_others_are_served(shop) -> None:
    leading = shop.lead()
    good, bad, last = shop.follow(1, ValueError("mine"), 3)
    shop.go_on.set()
    with pytest.raises(ValueError, match="mine"):
        bad.result(10)
    assert [each.result(10) for each in (leading, good, last)] == ["first", 1, 3]
    assert shop.written == [["first"], [1], [3]]
    assert shop.grants == 3, "after an error the next one leads"


def test_after_a_leaders_error_the_next_one_leads(shop) -> None:
    leading = shop.lead()
    bad, other = shop.follow(ValueError("his"), 1)
    shop.go_on.set()
    with pytest.raises(ValueError, match="his"):
        bad.result(10)
    assert [leading.result(10), other.result(10)] == ["first", 1]


def test_who_stands_behind_a_leader_that_dies_is_served(shop) -> None:
    """What ends the leader's thread is no answer to anybody else."""
    leading = shop.lead()
    dead, *others = shop.follow(SystemExit(), 1, 2)
    shop.go_on.set()
    with pytest.raises(SystemExit):
        dead.result(10)
    assert [each.result(10) for each in (leading, *others)] == ["first", 1, 2]
    assert shop.written == [["first"], [1, 2]]


def test_a_lost_lease_serves_nobody_else(shop) -> None:
    """The group is refused and the lock is gone: who stands behind the leader asks for it anew."""
    leading = shop.lead()
    others = shop.follow("loses", 1)
    shop.go_on.set()
    assert [each.result(10) for each in (leading, *others)] == ["first", "loses", 1]
    assert shop.written == [["first"], ["loses"], [1]]
    assert shop.grants == 3


def test_who_waited_his_time_leaves_unserved(shop) -> None:
    """The leader hangs: nobody behind him waits longer than he would have for the lock."""
    leading = shop.lead()
    (hasty,) = shop.follow("served after he was told no", timeout=0.05)
    with pytest.raises(LockTimeout):
        hasty.result(10)
    shop.go_on.set()
    assert leading.result(10) == "first"
    assert (shop.grants, shop.written) == (1, [["first"]])


def test_a_lock_that_stays_held_turns_all_away_in_their_time(shop) -> None:
    with shop.lock:
        waiting = [shop.pool.submit(shop.serve, 1, timeout) for timeout in (0.1, 0.15, 0.2)]
        for each in waiting:
            with pytest.raises(LockTimeout):
                each.result(10)
    assert (shop.grants, shop.written) == (0, [])


@pytest.mark.parametrize("backend", ["none", "process"])
def test_what_is_no_lock_between_machines_is_not_shared(shop, backend) -> None:
    """Else a control without a lock would be serialised by the line, and never oversell."""
    put_in_force(backend)
    policy.current()
    both = threading.Barrier(2)

    class Open(Guard):
        def __enter__(self) -> object:
            return self.shop.lease

        def __exit__(self, *_: object) -> None:
            pass

    at_once = [shop.pool.submit(serve, Open(shop), 0, lambda *_: both.wait(10)) for _ in range(2)]
    for each in at_once:
        each.result(10)
