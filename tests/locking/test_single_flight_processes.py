"""`locking.single_flight` between processes that share one Redis: FAULTS row 22."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from unittest.mock import patch

import pytest
from django.core.cache import caches

from devservers.faults.waiting import WAIT_TIMEOUT, until
from devservers.process_pool import PoolFailed, ProcessPool
from locking import locks
from locking.single_flight import SingleFlight
from tests.locking.held_call import HeldCall
from tests.locking.test_single_flight import EXPIRED, KEPT, expired, until_released

PROCESSES, THREADS = 4, 50
_fork = multiprocessing.get_context("fork")


class Readers:
    """Processes whose threads have all looked up the key before the first build ends."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.lookups = _fork.Value("i", 0)
        self.builds = _fork.Value("i", 0)

    def here(self) -> None:
        with self.lookups.get_lock():
            self.lookups.value += 1

    def build(self) -> str:
        with self.builds.get_lock():
            self.builds.value += 1
        until(lambda: self.lookups.value == PROCESSES * THREADS, "the lookups of all readers")
        return "new"

    def run(self, read: Callable[[Readers], object]) -> list[object]:
        def process(number: int) -> list[object]:
            with ThreadPoolExecutor(THREADS) as threads:
                reads = [threads.submit(read, self) for _ in range(THREADS)]
                got = [one.result() for one in reads]
            until_released(self.key)  # a process that ends earlier may leave the lock for its ttl
            return got

        with ProcessPool(process, PROCESSES) as pool:
            return [got for results in pool.results() for got in results]


@pytest.fixture
def real(settings: Any) -> SingleFlight:
    options = {**settings.CACHES["default"]["OPTIONS"], "socket_timeout": WAIT_TIMEOUT}
    settings.CACHES = {"default": {**settings.CACHES["default"], "OPTIONS": options}}
    caches["default"].clear()
    patient = {"LOCK_TTL": 3 * WAIT_TIMEOUT, "TIMEOUT": 2 * WAIT_TIMEOUT}
    return SingleFlight(CACHE="default", LOCK="redis", **patient)


@pytest.mark.faults(row=22, backend="redis", fired="200 readers")
def test_row_22_cold_key_is_built_once(real):
    def read(readers: Readers) -> object:
        readers.here()
        return real.get_or_build(readers.key, readers.build, **KEPT)

    readers = Readers("cold:1")
    assert readers.run(read) == ["new"] * PROCESSES * THREADS
    assert readers.builds.value == 1


@pytest.mark.faults(row=22, backend="redis", fired="200 readers")
def test_row_22_expired_key_is_built_once_without_waiting(real):
    expired(real, "expired:1", "old")

    def read(readers: Readers) -> object:
        # The builder waits for all the others, so these cannot wait for it.
        got = real.get_or_build("expired:1", lambda: build(readers), **KEPT)
        if got == "old":
            readers.here()
        return got

    def build(readers: Readers) -> str:
        readers.here()
        return readers.build()

    readers = Readers("expired:1")
    got = readers.run(read)
    assert readers.builds.value == 1
    assert (got.count("new"), got.count("old")) == (1, PROCESSES * THREADS - 1)


def test_caller_with_an_outdated_lookup_does_not_build(real):
    """It saw the old value, and gets the lock just after another process has built the new one."""
    expired(real, "late:1", "old")
    cache, lookups = caches["default"], list[object]()
    get_many = cache.get_many

    def look_up_and_pause(names: object) -> object:
        found = get_many(names)
        lookups.append(names)
        if len(lookups) == 1:
            assert another_process.get_or_build("late:1", lambda: "new", **KEPT) == "new"
            until_released("late:1")
        return found

    another_process = SingleFlight(CACHE="default", LOCK="redis")
    with patch.object(cache, "get_many", look_up_and_pause):
        assert real.get_or_build("late:1", lambda: "again", **KEPT) == "new"
    assert len(lookups) == 4


def test_next_build_of_the_same_process_waits_for_the_release(real):
    backend, held = locks["redis"].backend, HeldCall()

    def release(*lease: Any) -> None:
        held()
        type(backend).release(backend, *lease)

    with patch.object(backend, "release", release), ThreadPoolExecutor(1) as thread:
        assert real.get_or_build("next:1", lambda: "old", **EXPIRED) == "old"
        with patch("locking.single_flight.wait", side_effect=wait) as waits:
            after = thread.submit(real.get_or_build, "next:1", lambda: "new", **KEPT)
            until(lambda: waits.called, "the wait")
            held.end()
            assert after.result(WAIT_TIMEOUT) == "new"


@pytest.mark.faults(row=22, backend="redis", fired="200 readers")
def test_row_22_control_every_reader_builds_without_it(real):
    def read(readers: Readers) -> object:
        value = caches["default"].get(readers.key)
        readers.here()
        return value or readers.build()

    readers = Readers("control:1")
    readers.run(read)
    assert readers.builds.value == PROCESSES * THREADS


@pytest.mark.faults(row=22, backend="redis", fired="two builders killed")
@pytest.mark.parametrize("has_old", [False, True])
def test_row_22_killed_builder_is_replaced_after_its_lease(settings, has_old):
    caches["default"].clear()
    ttl, key = 1.0, f"killed:{has_old}"
    flight = SingleFlight(CACHE="default", LOCK="redis", LOCK_TTL=ttl, TIMEOUT=WAIT_TIMEOUT)
    if has_old:
        expired(flight, key, "old")
    started, ends = _fork.Array("d", 4), _fork.Array("d", 4)

    def build() -> str:
        with started.get_lock():
            number = sum(map(bool, started))
            started[number] = time.monotonic()
        (ends[number],) = (lease.deadline for lease in locks["redis"].held.values())
        if number < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "new"

    def insist(number: int = 0) -> list[tuple[str, float]]:
        got: list[tuple[str, float]] = []
        while not got or got[-1][0] != "new":
            got.append((flight.get_or_build(key, build, **KEPT), time.monotonic()))
        return got

    with ProcessPool(insist) as one, ProcessPool(insist) as another:
        for pool in (one, another):
            with pytest.raises(PoolFailed, match="killed"):
                pool.results()
        began = time.monotonic()
        got = insist()
    _, second, third, none = started[:4]
    assert none == 0
    assert (second > ends[0], third > ends[1]) == (True, True)
    assert all(value == "old" or at > third for value, at in got)
    # A caller with a stale value does not wait for the lease to end.
    assert len(got) > 1 or not has_old or began > second + ttl / 2  # the kill was told late
