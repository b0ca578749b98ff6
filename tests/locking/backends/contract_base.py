"""Base of the contract: a backend from its settings, and processes with the same backend."""

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking.backends.base import Backend, Capabilities
from locking.conf import backend_class
from locking.handler import create
from tests.locking.lock_worker import LockWorker

Test = TypeVar("Test", bound=Callable[..., object])
Another = Callable[[], LockWorker]


def needs(declared: Callable[[Capabilities], bool]) -> Callable[[Test], Test]:
    """Restrict a test to backends that declare a capability."""

    def mark(test: Test) -> Test:
        test.needs = declared  # type: ignore[attr-defined]
        return test

    return mark


def served(backend: Backend, name: str, number: int, queued: Callable[[], int | None]) -> list[int]:
    """Queue waiters one after the other; return the order in which they acquire the lock."""
    order: list[int] = []

    def wait(place: int) -> None:
        with backend.lock(name, timeout=WAIT_TIMEOUT):
            order.append(place)

    with ThreadPoolExecutor(number) as pool:
        with backend.lock(name, timeout=5):
            done = []
            for place in range(number):
                done.append(pool.submit(wait, place))
                until(lambda place=place: queued() == place + 1, f"waiter {place} queueing")
            assert [held.waiters for held in backend.inspect() if held.name == name] == [number]
        for waiter in done:
            waiter.result(WAIT_TIMEOUT)
    return order


def assert_nothing_leaks(backend: Backend, times: int = 20_000) -> None:
    """Acquire and release `times` locks of 100 names; compare memory, descriptors and threads."""

    def resources() -> tuple[int, int, int]:
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        return memory, len(os.listdir("/proc/self/fd")), threading.active_count()

    def run(times: int) -> None:
        for number in range(times):
            lock = backend.lock(f"leak:{number % 100}", timeout=5)
            assert lock.acquire()
            lock.release()

    run(times // 10)
    before = resources()
    run(times)
    memory, files, threads = (new - old for old, new in zip(before, resources(), strict=True))
    assert memory < 4 << 20
    assert files <= 3, "more than a thread that releases a dropped lock of another test opens"
    assert threads <= 0
    assert not backend.held
    assert not backend.inspect()


class ContractBase:
    """Subclasses give `path`, and `location` and `down` where the store is a server."""

    TTL = 1.0
    """A short lease for tests that wait for its end, in seconds."""

    path: str
    """The backend under test, as LOCKS names it."""
    down: str | list[str] = ""
    """A LOCATION without a server."""

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "path"):
            return
        capabilities = backend_class({"BACKEND": cls.path}).capabilities
        for attribute in dir(cls):
            needed = getattr(getattr(cls, attribute), "needs", None)
            if needed is not None and not needed(capabilities):
                setattr(cls, attribute, None)

    @pytest.fixture
    def location(self) -> str | list[str]:
        return ""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {}

    @pytest.fixture
    def conf(self, location: str | list[str], options: dict[str, Any]) -> dict[str, Any]:
        return {"BACKEND": self.path, "LOCATION": location, "OPTIONS": options}

    @pytest.fixture
    def env(self) -> dict[str, str]:
        """Environment in which other processes find the same store."""
        return {}

    @pytest.fixture
    def another(self, conf: dict[str, Any], env: dict[str, str]) -> Iterator[Another]:
        """Start another process with the same backend; it is killed after the test."""
        with ExitStack() as stack:
            yield lambda: stack.enter_context(LockWorker(conf, env=env))

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
        """Return the number of waiters for `name`; None if the store does not record it."""
        for held in backend.inspect():
            if held.name == name:
                return held.waiters
        return 0
