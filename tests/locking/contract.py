"""What every lock backend must do, as one suite. A backend's test class names its settings:

    class TestRedis(Contract):
        path = "locking.backends.redis.RedisBackend"

        @pytest.fixture
        def location(self, redis_server): return redis_server.url

What a backend declares in its `Capabilities` decides which of the tests it has, and each declared
property is proved here. `none` is the control that must fail to exclude.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from loadtest.faults import until
from locking import LockLost, LockMisuse, LockTimeout, LockUnavailable
from locking.backends.base import Backend, Capabilities
from locking.handler import backend_class, create
from tests.locking.actor import Actor

Test = TypeVar("Test", bound=Callable[..., object])
Another = Callable[[], Actor]
PATIENCE = 20.0
"""Seconds after which something that must happen is said not to happen."""


def needs(declared: Callable[[Capabilities], bool]) -> Callable[[Test], Test]:
    """The test is only for backends that declare this."""

    def mark(test: Test) -> Test:
        test.needs = declared  # type: ignore[attr-defined]
        return test

    return mark


class Contract:
    """The suite. Subclasses give `path`, and `location` and `down` where the store is a server."""

    TTL = 1.0
    """A short lease for tests that wait for its end, in seconds."""

    path: str
    """The backend under test, as LOCKS names it."""
    down: str | list[str] = ""
    """A LOCATION where nobody answers."""

    def __init_subclass__(cls) -> None:
        capabilities = backend_class({"BACKEND": cls.path}).capabilities
        for attribute in dir(Contract):
            needed = getattr(getattr(Contract, attribute), "needs", None)
            if needed is not None and not needed(capabilities):
                setattr(cls, attribute, None)

    @pytest.fixture
    def location(self) -> str | list[str]:
        """Where the store is; up."""
        return ""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        """The backend's own OPTIONS."""
        return {}

    @pytest.fixture
    def conf(self, location: str | list[str], options: dict[str, Any]) -> dict[str, Any]:
        """The entry in LOCKS."""
        return {"BACKEND": self.path, "LOCATION": location, "OPTIONS": options}

    @pytest.fixture
    def env(self) -> dict[str, str]:
        """What other processes need in their environment to find the same store."""
        return {}

    @pytest.fixture
    def another(self, conf: dict[str, Any], env: dict[str, str]) -> Iterator[Another]:
        """Starts another process with the same backend; killed with the test."""
        with ExitStack() as stack:
            yield lambda: stack.enter_context(Actor(conf, env=env))

    @pytest.fixture
    def backend(self, conf: dict[str, Any]) -> Iterator[Backend]:
        made = create("contract", conf)
        yield made
        made.close()

    @pytest.fixture
    def can(self, backend: Backend) -> Capabilities:
        return backend.capabilities

    @pytest.fixture
    def name(self) -> str:
        return f"contract:{uuid.uuid4().hex}"

    def waiting(self, backend: Backend, name: str) -> int | None:
        """How many wait for `name`, where that can be seen."""
        for held in backend.inspect():
            if held.name == name:
                return held.waiters
        return 0

    # --- the four calls -------------------------------------------------------------------

    def test_a_free_lock_is_granted_at_once(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name)
        assert lock.acquire(blocking=False)
        lease = lock.lease
        assert lease is not None
        assert (lease.name, lease.lost) == (name, False)
        assert str(os.getpid()) in lease.owner
        lease.check()
        lock.release()
        assert lock.lease is None

    def test_a_held_lock_is_refused_at_once(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        with backend.lock(name, timeout=5), ThreadPoolExecutor(1) as other:
            got = other.submit(self._take_and_give_back, backend, name, 0).result(PATIENCE)
            assert got is (can.exclusion == "none")

    @needs(lambda can: can.exclusion != "none")
    def test_a_wait_ends_with_its_time(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:

        def wait() -> float:
            started = time.monotonic()
            with pytest.raises(LockTimeout), backend.lock(name, timeout=0.2):
                pass
            return time.monotonic() - started

        with backend.lock(name, timeout=5), ThreadPoolExecutor(1) as other:
            assert 0.2 <= other.submit(wait).result(PATIENCE) < 5
            until(lambda: not self.waiting(backend, name), "the waiter leaving the queue")
        assert backend.lock(name).acquire(timeout=5), "an abandoned wait must not hold the lock"
        backend.lock(name).release()

    def test_a_wait_for_ever_ends_with_the_release(self, backend: Backend, name: str) -> None:
        lock = backend.lock(name)
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as other:
            waiter = other.submit(self._take_and_give_back, backend, name, math.inf)
            lock.release()
            assert waiter.result(PATIENCE)

    def _take_and_give_back(self, backend: Backend, name: str, timeout: float) -> bool:
        lock = backend.lock(name)
        if not lock.acquire(timeout=timeout):
            return False
        lock.release()
        return True

    def test_what_is_held_can_be_seen(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        if can.exclusion == "none":
            assert not backend.inspect()
            return
        with backend.lock(name, timeout=5) as lease:
            assert backend.lock(name).locked()
            seen = {held.name: held for held in backend.inspect()}[name]
            assert seen.owner == lease.owner
            assert seen.token in (lease.token, None)
            if can.expires:
                assert seen.expires_in is not None
                assert 0 < seen.expires_in <= backend.ttl + 1
        assert not backend.lock(name).locked()
        assert name not in {held.name for held in backend.inspect()}
        if can.lists_holders:
            with another() as other:
                taken = other.acquire(name, timeout=5)
                assert {held.name: held.owner for held in backend.inspect()}[name] == taken["owner"]
                assert backend.lock(name).locked()

    # --- mutual exclusion -----------------------------------------------------------------

    def test_processes_exclude_each_other_as_far_as_declared(
        self, can: Capabilities, another: Another, name: str, tmp_path: Path
    ) -> None:
        path, processes, times = tmp_path / "number", 3, 40
        path.write_text(f"{0:08d}")
        actors = [another() for _ in range(processes)]
        for actor in actors:
            actor.count_up(path, name, times)
        answers = [actor.answer() for actor in actors]
        assert all(answer["ok"] for answer in answers), answers
        counted = int(path.read_text())
        if can.exclusion != "machines":
            assert counted < processes * times, "the control lost no update: nothing was raced"
            return
        assert counted == processes * times
        if can.fencing:
            tokens = [token for answer in answers for token in answer["tokens"]]
            assert len(set(tokens)) == len(tokens), "two grants had one token"
            for answer in answers:
                assert answer["tokens"] == sorted(answer["tokens"])

    def test_threads_exclude_each_other(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        lock, inside, overlaps = backend.lock(name), [], []

        def work() -> None:
            for _ in range(10):
                lock.acquire()
                inside.append(1)
                if len(inside) > 1:
                    overlaps.append(1)
                time.sleep(0.001)  # the work that the lock is for
                inside.pop()
                lock.release()

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for _ in range(4)]:
                done.result(PATIENCE * 2)
        assert bool(overlaps) is (can.exclusion == "none")

    # --- re-entry -------------------------------------------------------------------------

    @pytest.mark.faults(row=24, fired="re-entry")
    def test_a_holder_may_take_it_again(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        assert can.reentrant
        with backend.lock(name, timeout=5) as lease:
            with backend.lock(name, timeout=5) as again:
                assert again is lease
                assert lease.count == 2
                if can.counts_in_store:
                    assert [h.count for h in backend.inspect() if h.name == name] == [2]
            assert not lease.lost
            with ThreadPoolExecutor(1) as other:
                got = other.submit(self._take_and_give_back, backend, name, 0).result(PATIENCE)
                assert got is (can.exclusion == "none"), "the inner release freed the lock"
            if can.counts_in_store:
                assert [h.count for h in backend.inspect() if h.name == name] == [1]
        assert not backend.lock(name).locked()

    # --- tokens and order -----------------------------------------------------------------

    def test_tokens_grow_with_every_grant(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        tokens = []
        for _ in range(20):
            with backend.lock(name, timeout=5) as lease:
                tokens.append(lease.token)
        if can.fencing:
            with another() as other:
                tokens.append(other.acquire(name, timeout=5)["token"])
                assert other.release(name)["ok"]
            with backend.lock(name, timeout=5) as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
        assert all(0 < token < 2**63 for token in tokens)

    @needs(lambda can: can.fair)
    def test_a_fair_lock_serves_in_order(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        served: list[int] = []

        def wait(number: int) -> None:
            with backend.lock(name, timeout=PATIENCE):
                served.append(number)

        with ThreadPoolExecutor(6) as pool:
            with backend.lock(name, timeout=5):
                done = []
                for number in range(6):
                    done.append(pool.submit(wait, number))
                    until(
                        lambda queued=number + 1: self.waiting(backend, name) == queued,
                        f"waiter {number} queueing",
                    )
            for waiter in done:
                waiter.result(PATIENCE)
        assert served == [0, 1, 2, 3, 4, 5]

    def test_everyone_who_waits_is_served(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        with ThreadPoolExecutor(12) as pool:
            waits = [
                pool.submit(self._take_and_give_back, backend, name, PATIENCE) for _ in range(36)
            ]
            assert all(wait.result(PATIENCE * 2) for wait in waits)
        assert not self.waiting(backend, name)

    # --- ends of a grant ------------------------------------------------------------------

    @needs(lambda can: can.exclusion == "machines")
    def test_a_killed_holder_is_replaced(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        assert can.expires or can.session_bound
        with another() as other:
            assert other.acquire(name, timeout=5, ttl=self.TTL)["ok"]
            assert not backend.lock(name).acquire(blocking=False)
            other.kill()
            assert backend.lock(name).acquire(timeout=PATIENCE)
            backend.lock(name).release()

    @needs(lambda can: can.exclusion == "machines")
    def test_a_killed_waiter_is_passed_over(
        self, backend: Backend, can: Capabilities, another: Another, name: str
    ) -> None:
        with another() as other:
            with backend.lock(name, timeout=5):
                other.send({"do": "acquire", "name": name, "timeout": 60, "ttl": self.TTL})
                if self.waiting(backend, name) is not None:
                    until(lambda: self.waiting(backend, name) == 1, "the other one queueing")
                other.kill()
            assert backend.lock(name).acquire(timeout=PATIENCE)
            backend.lock(name).release()

    @pytest.mark.faults(row=24, fired="release after expiry")
    @needs(lambda can: can.expires)
    def test_an_expired_holder_cannot_touch_its_successor(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        old = backend.lock(name, ttl=0.3, renew=False)
        old.acquire(timeout=5)
        lease = old.lease
        assert lease is not None
        until(lambda: lease.lost, "the lease ending")
        with ThreadPoolExecutor(1) as other:
            successor = backend.lock(name, ttl=30)
            assert other.submit(successor.acquire, timeout=PATIENCE).result(PATIENCE)
            with pytest.raises(LockLost):
                lease.check()
            with pytest.raises(LockLost):
                old.extend()
            with pytest.raises(LockLost):
                old.release()
            taken = other.submit(lambda: successor.lease).result(PATIENCE)
            assert taken is not None
            assert not taken.lost
            assert taken.token > lease.token
            assert not backend.lock(name).acquire(blocking=False), "the successor lost its lock"
            other.submit(successor.release).result(PATIENCE)

    @needs(lambda can: can.expires)
    def test_an_extended_lease_lives_longer(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        lock = backend.lock(name, ttl=0.5, renew=False)
        lock.acquire(timeout=5)
        lease = lock.lease
        assert lease is not None
        first_end = lease.deadline
        lock.extend(30)
        assert lease.deadline > first_end + 20
        until(lambda: time.monotonic() > first_end + 0.1, "the first end passing")
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(backend.lock(name).acquire, False).result(PATIENCE)
        assert not lease.lost
        lock.release()

    @pytest.mark.faults(row="F6", fired="work for longer than the lease")
    @needs(lambda can: can.expires)
    def test_the_watchdog_keeps_it(self, backend: Backend, can: Capabilities, name: str) -> None:
        with backend.lock(name, ttl=self.TTL, timeout=5) as lease:
            first_end = lease.deadline
            until(lambda: time.monotonic() > first_end + self.TTL / 2, "work outlasting the lease")
            assert not lease.lost
            with ThreadPoolExecutor(1) as other:
                assert not other.submit(backend.lock(name).acquire, False).result(PATIENCE)

    @pytest.mark.faults(row="F6", fired="the same, not renewed")
    @needs(lambda can: can.expires)
    def test_without_the_watchdog_it_ends(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        with (
            ThreadPoolExecutor(1) as other,
            pytest.raises(LockLost),
            backend.lock(name, ttl=0.3, timeout=5, renew=False),
        ):
            assert other.submit(backend.lock(name).acquire, timeout=PATIENCE).result(PATIENCE)

    def test_the_error_of_the_body_is_the_one_that_shows(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        ttl = 0.2 if can.expires else None
        with (  # noqa: PT012 - the end of the `with` is what is tested
            pytest.raises(KeyError),
            backend.lock(name, ttl=ttl, timeout=5, renew=False) as lease,
        ):
            if can.expires:
                until(lambda: lease.lost, "the lease ending")
            raise KeyError(name)
        assert backend.lock(name).acquire(timeout=5)
        backend.lock(name).release()

    # --- misuse ---------------------------------------------------------------------------

    @pytest.mark.faults(row=24, fired="foreign and double release")
    def test_releasing_what_is_not_held_is_an_error(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        lock = backend.lock(name)
        with pytest.raises(LockMisuse):
            lock.release()
        lock.acquire(timeout=5)
        with ThreadPoolExecutor(1) as other, pytest.raises(LockMisuse):
            other.submit(lock.release).result(PATIENCE)
        assert lock.lease is not None
        lock.lease.check()
        lock.release()
        with pytest.raises(LockMisuse):
            lock.release()

    @pytest.mark.parametrize("bad", ["", "x" * 300, "line\nbreak", "nul\0"])
    def test_a_bad_name_is_refused(self, backend: Backend, bad: str) -> None:
        with pytest.raises(LockMisuse):
            backend.lock(bad)

    def test_bad_times_are_refused(self, backend: Backend, name: str) -> None:
        for ttl in (0, -1, math.inf, math.nan):
            with pytest.raises(LockMisuse):
                backend.lock(name, ttl=ttl)
        for timeout in (-1, math.nan):
            with pytest.raises(LockMisuse):
                backend.lock(name).acquire(timeout=timeout)
        with pytest.raises(LockMisuse):
            backend.lock(name).acquire(blocking=False, timeout=1)
        assert name not in {held.name for held in backend.inspect()}

    @needs(lambda can: can.exclusion != "none")
    def test_names_are_taken_literally(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        odd = [name.upper(), f"{name} ", f"{name}/../%2F", f"{name}{{*}}?[x]", f"{name}é限"]
        with backend.lock(name.lower(), timeout=5):
            for other in odd:
                assert backend.lock(other).acquire(blocking=False), other
                backend.lock(other).release()
        with backend.lock(odd[-1], timeout=5):
            assert odd[-1] in {held.name for held in backend.inspect()}

    # --- cancelling, forking, going down ----------------------------------------------------

    @needs(lambda can: can.exclusion != "none")
    def test_a_cancelled_task_leaves_no_trace(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:

        async def main() -> None:
            lock = backend.lock(name)

            async def take_and_give_back() -> None:
                assert await lock.aacquire(timeout=PATIENCE)
                await lock.arelease()

            async with lock as lease:
                assert await lock.aacquire(timeout=0), "re-entry in the same task"
                assert lease.count == 2
                await lock.arelease()
                waiter = asyncio.create_task(lock.aacquire(timeout=PATIENCE))
                while self.waiting(backend, name) == 0:
                    await asyncio.sleep(0.005)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(waiter, PATIENCE)
                assert not self.waiting(backend, name)
            await asyncio.wait_for(asyncio.create_task(take_and_give_back()), PATIENCE)

        asyncio.run(main())

    def test_a_lock_made_before_a_fork_works_after_it(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        lock = backend.lock(name)
        lock.acquire(timeout=5)  # opens the client, too
        free = backend.lock(f"{name}-free")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                held_here = lock.lease is not None
                refused = not lock.acquire(timeout=0.1) or can.exclusion != "machines"
                works = free.acquire(timeout=5)
                free.release()
                code = 0 if not held_here and refused and works else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert lock.lease is not None
        lock.lease.check()
        lock.release()

    @needs(lambda can: can.exclusion == "machines")
    def test_a_store_that_is_down_says_so_in_bounded_time(self) -> None:
        backend = create("down", {"BACKEND": self.path, "LOCATION": self.down})
        started = time.monotonic()
        try:
            with pytest.raises(LockUnavailable):
                backend.probe()
            with pytest.raises(LockUnavailable):
                backend.lock("contract:down").acquire(timeout=0.5)
            assert backend.lock("contract:down").lease is None
        finally:
            backend.close()
        assert time.monotonic() - started < PATIENCE

    def test_a_live_store_answers_a_probe(self, backend: Backend) -> None:
        backend.probe()

    # --- operators --------------------------------------------------------------------------

    def test_a_broken_lock_is_lost_by_its_holder(
        self, backend: Backend, can: Capabilities, name: str
    ) -> None:
        lock = backend.lock(name)
        lock.acquire(timeout=5)
        try:
            assert backend.break_lock(name)
        except LockMisuse:
            lock.release()
            return
        assert not backend.break_lock(f"{name}-unknown")
        with ThreadPoolExecutor(1) as other:
            assert other.submit(self._take_and_give_back, backend, name, PATIENCE).result(
                PATIENCE
            ), "a broken lock must be free for others"
        with pytest.raises(LockLost):
            lock.release()

    # --- leaks ------------------------------------------------------------------------------

    def test_nothing_stays_behind(self, backend: Backend, name: str) -> None:
        def run(times: int) -> None:
            for number in range(times):
                with backend.lock(f"{name}:{number}", timeout=5):
                    pass

        run(5)
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        run(100)
        assert not backend.held
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        assert threading.active_count() <= threads + 1
        assert not [held for held in backend.inspect() if held.name.startswith(name)]
