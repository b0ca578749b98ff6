"""Property-based test of the locks on real stores: any order of calls, compared with a model."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pytest_django import DjangoDbBlocker
from redis import Redis as Client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.backends.base import Backend
from locking.backends.database.backend import DatabaseBackend
from locking.backends.redis.backend import RedisBackend
from locking.claims import Claim, Grant
from tests.locking.backends.database.database_tools import alias_for, database


class AnyOrder(RuleBasedStateMachine):
    """The model: one holder with its depth, a queue of claims, and the last token.

    Time passes only where a rule says so: `end_grant` ends a grant in the store.
    """

    backend: Backend
    end_grant: Callable[[str], object]
    names = count(1)
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.name = f"any-order-{next(self.names)}"
        self.holder: Claim | None = None
        self.depth = self.token = 0
        self.queue: list[Claim] = []
        self.grants: dict[str, Grant | None] = {}
        self.threads: dict[str, threading.Thread] = {}

    def teardown(self) -> None:
        for claim in self.queue:
            claim.cancel()
        for thread in self.threads.values():
            thread.join(WAIT_TIMEOUT)
            assert not thread.is_alive()
        if self.holder is not None:
            self.backend.release(self.holder, self.token)
        assert self.backend.holders(self.name) == []

    def _granted(self, claim: Claim, grant: Grant | None) -> None:
        assert grant is not None
        assert grant.token > self.token, "a token did not grow"
        self.token, self.holder, self.depth = grant.token, claim, 1

    def _next(self) -> None:
        """The lock was released: the first waiter must have it now."""
        self.holder = None
        if self.queue:
            claim = self.queue.pop(0)
            self.threads.pop(claim.owner).join(WAIT_TIMEOUT)
            self._granted(claim, self.grants.pop(claim.owner))

    def _is_refused(self, claim: Claim, token: int) -> None:
        for call in (
            lambda: self.backend.extend(claim, token, 60.0),
            lambda: self.backend.set_depth(claim, token, 2),
            lambda: self.backend.release(claim, token),
        ):
            with pytest.raises(LockLost):
                call()

    def new_claim(self) -> Claim:
        return Claim(name=self.name, ttl=60.0)

    @rule(target=claims)
    def try_once(self) -> Claim:
        claim = self.new_claim()
        grant = self.backend.acquire(claim, 0)
        if self.holder is None:
            self._granted(claim, grant)
        else:
            assert grant is None
        return claim

    @precondition(lambda self: self.holder and len(self.queue) < 4)
    @precondition(lambda self: self.backend.capabilities.fair)
    @rule(target=claims)
    def wait(self) -> Claim:
        claim = self.new_claim()

        def work() -> None:
            self.grants[claim.owner] = self.backend.acquire(claim, WAIT_TIMEOUT * 3)

        self.queue.append(claim)
        self.threads[claim.owner] = thread = threading.Thread(target=work)
        thread.start()
        until(
            lambda: self.backend.holders(self.name)[0].waiters == len(self.queue), "a waiter queued"
        )
        return claim

    @precondition(lambda self: self.queue)
    @rule(number=st.integers(0, 3))
    def give_up(self, number: int) -> None:
        claim = self.queue.pop(number % len(self.queue))
        claim.cancel()
        self.threads.pop(claim.owner).join(WAIT_TIMEOUT)
        assert self.grants.pop(claim.owner) is None

    @precondition(lambda self: self.holder)
    @rule(depth=st.integers(1, 3))
    def enter_again(self, depth: int) -> None:
        self.backend.set_depth(self.holder, self.token, depth)
        self.depth = depth

    @precondition(lambda self: self.holder)
    @rule()
    def extend(self) -> None:
        self.backend.extend(self.holder, self.token, 120.0)

    @precondition(lambda self: self.holder)
    @rule()
    def release(self) -> None:
        self.backend.release(self.holder, self.token)
        self._next()

    @precondition(lambda self: self.holder)
    @rule(target=claims)
    def hand_over(self) -> Claim:
        """The waiters stay behind the new holder."""
        giver, token, taker = self.holder, self.token, self.new_claim()
        self.backend.set_depth(giver, token, 0)
        self._granted(taker, self.backend.take_over(taker, giver.owner, token))
        return giver

    @rule(claim=claims)
    def foreign_calls(self, claim: Claim) -> None:
        if claim is not self.holder and claim not in self.queue:
            self._is_refused(claim, self.token)

    @rule()
    def break_it(self) -> None:
        assert self.backend.break_lock(self.name) is (self.holder is not None)
        if self.holder is not None:
            self._next()

    @precondition(lambda self: self.holder)
    @rule()
    def expire(self) -> None:
        """Where others wait, the next caller notices it: here one that tries once."""
        lost, token = self.holder, self.token
        self.end_grant(self.name)
        if self.queue:
            assert self.backend.acquire(self.new_claim(), 0) is None, "a newcomer overtook"
        self._next()
        self._is_refused(lost, token)

    @precondition(lambda self: isinstance(self.backend, DatabaseBackend))
    @rule()
    def sweep(self) -> None:
        self.backend.sweep()

    @invariant()
    def the_store_agrees(self) -> None:
        seen = [
            (held.owner, held.token, held.count, held.waiters or 0)
            for held in self.backend.holders(self.name)
        ]
        holder = self.holder
        assert seen == ([(holder.owner, self.token, self.depth, len(self.queue))] if holder else [])


@pytest.fixture(params=["redis", "SQLite"])
def store(
    request: pytest.FixtureRequest,
    redis_server: Redis,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[tuple[Backend, Callable[[str], object]]]:
    """Return a backend, and a function that ends the grant of a name."""
    if request.param == "redis":
        backend = RedisBackend("redis", location=redis_server.url)
        with closing(backend), Client.from_url(redis_server.url) as raw:
            yield backend, lambda name: raw.delete(backend.keys(name)[0])
        return
    file = tmp_path / "locks.sqlite3"

    def end(name: str) -> None:
        with closing(sqlite3.connect(file)) as raw, raw:
            raw.execute("UPDATE locking_lockrow SET expires_at = 1 WHERE name = ?", (name,))

    url = f"sqlite:///{file}"
    with alias_for(url, "machine", django_db_blocker) as alias, closing(database(alias)) as rows:
        yield rows, end


# Threads of other tests' clients may draw a random pause while a rule is chosen.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module")
def test_any_order_of_calls(store: tuple[Backend, Callable[[str], object]]) -> None:
    backend, end = store
    fields = {"backend": backend, "end_grant": staticmethod(end)}
    run_state_machine_as_test(
        type("Machine", (AnyOrder,), fields),
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
