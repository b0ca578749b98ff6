"""The fixtures of the contract."""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import pytest

from locking.claims import Capabilities, Claim, Grant
from locking.conf import backend_class
from locking.handler import create
from locking.lease import LockStore
from locking.testing.calls import WAIT_TIMEOUT, lock_for, until
from locking.testing.driver import StoreDriver
from locking.testing.process import OtherProcess

Test = TypeVar("Test", bound=Callable[..., object])
Another = Callable[[], OtherProcess]
Open = Callable[..., LockStore]
"""Opens the store of the driver as another process would; with `far`, through its proxy."""


def needs(declared: Callable[[Capabilities], bool], hook: str = "") -> Callable[[Test], Test]:
    """Restrict a test to backends that declare a capability, and to drivers with a hook."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = declared, hook
        return test

    return mark


def each_lock(*slots: int | None) -> Callable[[Test], Test]:
    """Give `slots` to a test: None for a plain lock, others if the backend has shared ones."""

    def mark(test: Test) -> Test:
        vars(test)["slots"] = slots
        return test

    return mark


def claim_on(locks: LockStore, name: str, slots: int | None, ttl: float = 30) -> Claim:
    """Return a claim of a new owner on a lock, a semaphore, or the lock of a READER or WRITER."""
    claim = Claim(name=lock_for(locks, name, slots).name, ttl=ttl)
    claim.slots = slots
    return claim


def granted(locks: LockStore, claim: Claim) -> Grant:
    """Return the grant of a claim, which must get the lock."""
    grant = locks.backend.acquire(claim, WAIT_TIMEOUT)
    assert grant is not None
    return grant


class ContractBase:
    """Subclasses give `path`, and `location` and `down` where the store is a server."""

    TTL = 1.0
    """A short lease for tests that wait for its end, in seconds."""
    path: str
    """The backend under test, as LOCKS names it."""
    down: str | list[str] = ""
    """A LOCATION without a server."""
    also: Mapping[str, Any] = {}
    """Capabilities that the backend has on this store, beyond those of its class."""
    repeats: Collection[str] = ()
    """What takes effect before the ttl ends, though it had no reply: "release", "withdrawal"."""
    Driver: type[StoreDriver] = StoreDriver
    """The faults that the store can have."""
    capabilities: ClassVar[Capabilities]
    left_out: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "path"):
            return
        declared = backend_class({"BACKEND": cls.path}).capabilities
        cls.capabilities = replace(declared, **cls.also)
        inherited, cls.left_out = cls.left_out, {}
        for name in dir(cls):
            test = getattr(cls, name)
            if test is None and name not in vars(cls):
                test = inherited.get(name)  # a subclass may have more hooks
            applies, hook = getattr(test, "needs", (None, ""))
            if applies is not None:
                is_left_out = not applies(cls.capabilities) or (hook and not cls.Driver.has(hook))
                setattr(cls, name, None if is_left_out else test)
                cls.left_out |= {name: test} if is_left_out else {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        slots = getattr(metafunc.function, "slots", ())
        if chosen := [one for one in slots if one is None or self.capabilities.shared]:
            metafunc.parametrize("slots", chosen)

    @pytest.fixture
    def location(self, driver: StoreDriver) -> str | list[str]:
        return driver.location

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {}

    @pytest.fixture
    def conf(self, location: str | list[str], options: dict[str, Any]) -> dict[str, Any]:
        return {"BACKEND": self.path, "LOCATION": location, "OPTIONS": options}

    @pytest.fixture(scope="class")
    @classmethod
    def driver(cls) -> Iterator[StoreDriver]:
        driver = cls.Driver()
        yield driver
        driver.close()

    @pytest.fixture
    def open_store(self, driver: StoreDriver) -> Iterator[Open]:
        with ExitStack() as stack:

            def make(*, far: bool = False) -> LockStore:
                location = driver.far if far else driver.location
                conf = {"BACKEND": self.path, "LOCATION": location, "OPTIONS": driver.options}
                return stack.enter_context(closing(create("faults", conf)))

            try:
                yield make
            finally:
                driver.recover()

    @pytest.fixture
    def another(self, conf: dict[str, Any]) -> Iterator[Another]:
        """Start other processes with the same backend; they are killed after the test."""
        started: list[OtherProcess] = []

        def start() -> OtherProcess:
            started.append(OtherProcess(conf))
            return started[-1]

        yield start
        for process in started:
            process.kill()

    @pytest.fixture
    def locks(self, conf: dict[str, Any]) -> Iterator[LockStore]:
        with closing(create("contract", conf)) as made:
            yield made

    @pytest.fixture
    def name(self) -> str:
        return f"contract:{uuid.uuid4().hex}"

    def waiting(self, locks: LockStore, name: str) -> int | None:
        """Return the number of waiters for `name`; None if the store does not record it."""
        return next((held.waiters for held in locks.inspect() if held.name == name), 0)

    def queue(
        self, locks: LockStore, name: str, kinds: Sequence[int | None], pool: ThreadPoolExecutor
    ) -> list[int]:
        """Queue a waiter of each kind; return the list that gets their places when served."""
        order: list[int] = []

        def wait(place: int, slots: int | None) -> None:
            with lock_for(locks, name, slots, timeout=WAIT_TIMEOUT, ttl=60):
                order.append(place)

        queued = claim_on(locks, name, kinds[0]).name
        for place, slots in enumerate(kinds):
            pool.submit(wait, place, slots)
            until(
                partial(lambda size: self.waiting(locks, queued) == size, place + 1),
                f"waiter {place} queueing",
            )
        return order

    def served(self, locks: LockStore, name: str, kinds: Sequence[int | None]) -> list[int]:
        """Queue a waiter of each kind behind a holder; return them in the order of the grants."""
        holder = claim_on(locks, name, kinds[0], ttl=60)
        token = granted(locks, holder).token
        with ThreadPoolExecutor(len(kinds)) as pool:
            order = self.queue(locks, name, kinds, pool)
            locks.backend.release(holder, token)
        return order

    def held(self, locks: LockStore, name: str) -> list[tuple[str, int | None]]:
        """Return the holders of a lock with their depths."""
        return [(held.owner, held.count) for held in locks.inspect() if held.name == name]

    def test_every_declared_capability_is_proved(self) -> None:
        """Skipped, with the missing hooks, where only the backend's word is known."""
        unproved = [
            f"{capability} (needs StoreDriver.{hook})"
            for capability, hook in StoreDriver.PROVES.items()
            if getattr(self.capabilities, capability) and not self.Driver.has(hook)
        ]
        if unproved and self.capabilities.exclusion == "machines":
            pytest.skip(f"{self.path}: declared but not proved: {', '.join(unproved)}")
