"""RedLock on five healthy masters: votes, undoing, waiting, leaks, settings."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.core.checks import run_checks
from django.test import override_settings

from loadtest.faults.waiting import until
from locking import LockLost, LockMisuse
from locking.backends.redlock.backend import RedLockBackend
from tests.locking.redlock_masters import (
    KEY,
    NAME,
    Masters,
    claim,
    connected,
    elapsed,
    masters,
    take,
)

__all__ = ["masters"]


class Interrupted(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def backend(masters: Masters) -> RedLockBackend:
    """Connected, and patient: what is slow on a busy machine is not silent."""
    return connected(masters.client(NODE_TIMEOUT=1))


class TestVotes:
    def test_every_master_votes_and_every_master_forgets(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        asked, grant = take(backend)
        until(lambda: masters.values() == [f"{asked.owner} {grant.token}"] * 5)
        backend.release(asked, grant.token)
        until(lambda: masters.values() == [None] * 5)

    def test_a_lease_ends_before_its_keys_do(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        """Validity is ttl less the time it took less the drift of the clocks."""
        started = time.monotonic()
        _, grant = take(backend, ttl=10)
        took = time.monotonic() - started
        assert 10 - 0.102 <= grant.deadline - started <= 10 - 0.102 + took
        with redis.Redis.from_url(masters.servers[0].url) as direct:
            assert time.monotonic() + direct.pttl(KEY) / 1000 > grant.deadline

    @pytest.mark.parametrize("others", [1, 2, 3])
    def test_a_majority_decides(
        self, masters: Masters, backend: RedLockBackend, others: int
    ) -> None:
        for number in range(others):
            masters.plant(number)
        grant = backend.acquire(claim(), 0)
        assert (grant is not None) is (others < 3)
        if grant is None:
            until(lambda: masters.values()[3:] == [None, None], "the undoing")
        assert masters.values()[:others] == ["somebody else"] * others

    def test_a_minority_is_not_a_holder(self, masters: Masters, backend: RedLockBackend) -> None:
        for number in range(2):
            masters.plant(number, "host:1:1:left over 17")
        assert backend.inspect() == []
        masters.plant(2, "host:1:1:left over 17")
        (held,) = backend.inspect()
        assert (held.name, held.owner, held.token) == (NAME, "host:1:1:left over", 17)

    def test_a_break_frees_every_master(self, masters: Masters, backend: RedLockBackend) -> None:
        asked, grant = take(backend)
        assert masters.client().break_lock(NAME)
        until(lambda: masters.values() == [None] * 5)
        with pytest.raises(LockLost):
            backend.extend(asked, grant.token, 10)
        with pytest.raises(LockLost):
            backend.release(asked, grant.token)

    def test_a_prefix_is_no_pattern(self, masters: Masters) -> None:
        odd, plain = masters.client(PREFIX="l[ao]ck*:"), masters.client(PREFIX="lack:")
        take(plain)
        assert odd.inspect() == []
        take(odd)
        assert [held.name for held in odd.inspect()] == [NAME]

    def test_late_replies_are_not_taken_for_the_next(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        """Masters that fall silent by turns: their late answers must not count for later claims."""
        for number in range(10):
            silent = masters.servers[number % 5]
            silent.pause()
            asked, grant = take(backend)
            backend.release(asked, grant.token)
            silent.resume()
            for other in range(5):
                masters.plant(other)
            assert backend.acquire(claim(), 0) is None, "a late yes was counted"
            for other in range(5):
                masters.uproot(other)


class TestLosing:
    def test_the_holder_learns_that_its_majority_is_gone(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        told = threading.Event()
        lock = backend.lock(NAME, ttl=1, on_lost=lambda lease: told.set())
        assert lock.acquire(timeout=5)
        lease = lock.lease
        assert lease is not None
        for server in masters.servers[:3]:
            server.pause()
        assert told.wait(10), "nobody renewed it, nobody said so"
        assert lease.lost
        assert time.monotonic() >= lease.deadline
        for server in masters.servers[:3]:
            server.resume()
        with pytest.raises(LockLost):
            lock.release()

    def test_a_paused_minority_does_not_end_a_watched_lease(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        with backend.lock(NAME, ttl=0.6, timeout=5) as lease:
            first_end = lease.deadline
            for server in masters.servers[:2]:
                server.pause()
            until(lambda: time.monotonic() > first_end + 1, "work outlasting the lease")
            assert not lease.lost
            assert masters.client().acquire(claim(), 0) is None


class TestWaiting:
    def test_a_cancelled_wait_ends_soon_and_leaves_nothing(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        for number in range(3):
            masters.plant(number)
        asked = claim()
        with ThreadPoolExecutor(1) as other:
            wait = other.submit(backend.acquire, asked, float("inf"))
            until(lambda: masters.value(4), "an attempt")
            assert elapsed(lambda: (asked.cancel(), wait.result(5))) < 1
        assert wait.result() is None
        until(lambda: masters.values()[3:] == [None, None], "the undoing")

    @pytest.mark.parametrize("strikes", ["sendall", "recv", "feed", "gets"])
    def test_an_exception_after_any_step_of_a_vote_leaves_nothing(
        self, masters: Masters, backend: RedLockBackend, strikes: str
    ) -> None:
        """As a signal handler's would: the step is done, and nobody knows."""
        for number in range(3):
            masters.plant(number)
        (quorum,) = backend._idle
        line = quorum._lines[backend._masters[4]]
        struck: list[Interrupted] = []

        class Interrupting:
            def __init__(self, of: Any) -> None:
                self._of = of

            def __getattr__(self, name: str) -> Any:
                def do(*args: Any) -> Any:
                    done = getattr(self._of, name)(*args)
                    if name == strikes and not struck:
                        struck.append(Interrupted())
                        raise struck[0]
                    return done

                return do

        line._socket, line._reader = Interrupting(line._socket), Interrupting(line._reader)
        with pytest.raises(Interrupted):
            backend.acquire(claim(), 60)
        until(lambda: masters.values()[3:] == [None, None], "the undoing")
        assert struck

    def test_an_interrupted_wait_leaves_nothing(
        self, masters: Masters, backend: RedLockBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Wherever the exception strikes; with hardly a pause, so that it strikes in mid-vote."""

        def interrupt(*args: object) -> None:
            raise Interrupted

        monkeypatch.setattr("locking.backends.redlock.backend.PAUSE", (0.0, 0.0001))
        for number in range(3):
            masters.plant(number)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for number in range(40):
                connected(backend)
                signal.setitimer(signal.ITIMER_REAL, 0.01 + number / 10_000)
                with pytest.raises(Interrupted):
                    backend.acquire(claim(), 60)
                until(lambda: masters.values()[3:] == [None, None], "the undoing")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        for number in range(3):
            masters.uproot(number)
        take(backend)

    def test_a_master_for_whose_dialling_there_was_no_thread_is_dialled_later(
        self, masters: Masters, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        backend = masters.client(NODE_TIMEOUT=1)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="new thread"):
                    backend.acquire(claim(), 5)
        take(backend)

    def test_many_threads_share_a_backend(self, backend: RedLockBackend) -> None:
        inside: list[int] = []

        def work(number: int) -> None:
            asked, grant = take(backend, timeout=30)
            inside.append(number)
            assert inside == [number]
            inside.clear()
            backend.release(asked, grant.token)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(64)))


class TestLeaks:
    def test_nothing_grows(self, masters: Masters, backend: RedLockBackend) -> None:
        def run(times: int) -> None:
            for number in range(times):
                asked = claim()
                asked.name = f"{NAME}:{number % 50}"
                grant = backend.acquire(asked, 5)
                assert grant is not None
                backend.release(asked, grant.token)

        run(50)
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        run(20_000)
        assert len(os.listdir("/proc/self/fd")) <= files
        assert threading.active_count() <= threads
        assert (len(backend._pinned), len(backend._idle), len(backend._all)) == (0, 1, 1)
        for server in masters.servers:
            with redis.Redis.from_url(server.url) as direct:
                until(lambda direct=direct: direct.dbsize() == 0, "the last release")

    def test_a_holder_that_never_released_leaves_no_connections(
        self, backend: RedLockBackend
    ) -> None:
        for number in range(3):
            forgotten = claim(ttl=0.1)
            forgotten.name = f"{NAME}:{number}"
            grant = backend.acquire(forgotten, 5)
            assert grant is not None
            until(lambda end=grant.deadline: time.monotonic() > end)
        take(backend)
        assert len(backend._all) <= 2
        with pytest.raises(LockLost):
            backend.release(forgotten, grant.token)

    def test_closing_ends_every_connection_and_not_the_lock(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        files = len(os.listdir("/proc/self/fd"))
        asked, grant = take(backend)
        backend.close()
        assert len(os.listdir("/proc/self/fd")) <= files - 5
        assert masters.client().acquire(claim(), 0) is None
        assert backend.extend(asked, grant.token, 90) > grant.deadline
        backend.release(asked, grant.token)
        until(lambda: masters.values() == [None] * 5)

    def test_closing_while_somebody_borrows(self, backend: RedLockBackend) -> None:
        class Quicker(deque):  # type: ignore[type-arg]
            def pop(self) -> Any:
                super().pop()  # by the other, after the look whether there is one
                return super().pop()

        backend._idle = Quicker(backend._idle)
        backend.close()
        assert not backend._idle

    def test_a_child_process_does_not_touch_its_parents_connections(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        asked, grant = take(backend)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                refused = backend.acquire(claim(), 0.1) is None
                backend.close()
                code = 0 if refused and not backend._pinned else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (quorum,) = backend._all
        connections = quorum.lines()
        backend.extend(asked, grant.token, 90)
        backend.release(asked, grant.token)
        assert quorum.lines() == connections, "they had to be opened again"


class TestSettings:
    URLS = [f"redis://127.0.0.1:{port}/0" for port in (7001, 7002, 7003)]

    @pytest.fixture
    def found(self, request: pytest.FixtureRequest) -> Iterator[list[str]]:
        conf = {"BACKEND": "locking.backends.redlock.RedLockBackend", "LOCATION": self.URLS}
        locks = {"redlock": {**conf, **request.param}}
        policy = {"BACKEND": "redlock", "STRATEGY": "conditional"}
        flight = {"LOCK": "redlock"}
        with override_settings(LOCKS=locks, LOCK_POLICY=policy, LOCK_SINGLE_FLIGHT=flight):
            yield [str(message.id) for message in run_checks() if "locking" in str(message.id)]

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            ({}, []),
            ({"OPTIONS": {"RESTART_DELAY": 6.0, "NODE_TIMEOUT": 0.6}}, []),
            ({"LOCATION": "redis://127.0.0.1:7001/0"}, ["locking.E031"]),
            ({"LOCATION": [*URLS[:2], "http://127.0.0.1"]}, ["locking.E031"]),
            ({"LOCATION": [*URLS[:2], "redis://127.0.0.1:nine"]}, ["locking.E031"]),
            ({"LOCATION": URLS[:2]}, ["locking.E032"]),
            ({"LOCATION": [*URLS, "redis://127.0.0.1:7004"]}, ["locking.E032"]),
            ({"LOCATION": [*URLS[:2], "redis://127.0.0.1:7001/5"]}, ["locking.E033"]),
            ({"OPTIONS": {"NODE_TIMEOUT": 1.0}}, ["locking.E034"]),
            ({"OPTIONS": {"NODE_TIMEOUT": "soon"}}, ["locking.E034"]),
            ({"OPTIONS": {"RESTART_DELAY": 5.0}}, ["locking.E035"]),
            ({"OPTIONS": {"QUORUM": 2}}, ["locking.E036"]),
        ],
        indirect=["found"],
    )
    def test_bad_ones_are_refused(self, found: list[str], expected: list[str]) -> None:
        assert found == expected

    def test_an_evicting_master_is_refused(self, masters: Masters) -> None:
        with redis.Redis.from_url(masters.urls[3]) as direct:
            direct.config_set("maxmemory-policy", "allkeys-lru")
            direct.config_set("maxmemory", "100mb")
        (error,) = RedLockBackend.check("redlock", {"LOCATION": masters.urls})
        assert error.id == "locking.E037"
        assert str(masters.servers[3].port) in error.msg

    def test_no_grant_outlives_the_restart_delay(self, masters: Masters) -> None:
        backend = masters.client(RESTART_DELAY=6)
        with pytest.raises(LockMisuse, match="RESTART_DELAY"):
            backend.acquire(claim(ttl=7), 0)

    def test_a_ttl_within_the_drift_is_refused(self, backend: RedLockBackend) -> None:
        with pytest.raises(LockMisuse, match="drift"):
            backend.acquire(claim(ttl=0.002), 0)


def test_what_it_declares_leaves_no_doubt() -> None:
    can = RedLockBackend.capabilities
    assert (can.fencing, can.fair, can.wakes_waiters) == (False, False, False)
    assert (can.survives_minority, can.expires, can.reentrant) == (True, True, True)
