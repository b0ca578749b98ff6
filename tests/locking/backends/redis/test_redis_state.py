"""Property-based test of the Redis lock on a real server: any order of calls."""

import threading
from collections.abc import Iterator
from itertools import count

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
from redis import Redis as Client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.backends.redis.backend import RedisBackend
from locking.caller import new_owner
from locking.claims import Claim, Grant

_names = count(1)


class RedisLock(RuleBasedStateMachine):
    """The model: one holder with its count, a queue of claims, and the last token.

    Time passes only where a rule says so: an expiry deletes the lock's key, as Redis does.
    """

    backend: RedisBackend
    raw: Client
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.name = f"state-{next(_names)}"
        self.key = f"lock:{{{self.name}}}"
        self.holder: Claim | None = None
        self.count = 0
        self.queue: list[Claim] = []
        self.grants: dict[str, Grant | None] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.last_token = 0

    def teardown(self) -> None:
        for claim in self.queue:
            claim.cancel()
        for thread in self.threads.values():
            thread.join(WAIT_TIMEOUT)
            assert not thread.is_alive()
        if self.holder is not None:
            self.backend.release(self.holder, 0)
        assert self.raw.keys(f"{self.key}*") == []

    def _granted(self, claim: Claim, grant: Grant | None) -> None:
        assert grant is not None
        assert grant.token > self.last_token, "a token did not grow"
        self.last_token, self.holder, self.count = grant.token, claim, 1

    def _next(self) -> None:
        """The lock was released: the first waiter must have it now."""
        self.holder = None
        if self.queue:
            claim = self.queue.pop(0)
            self.threads.pop(claim.owner).join(WAIT_TIMEOUT)
            self._granted(claim, self.grants.pop(claim.owner))

    def new_claim(self) -> Claim:
        return Claim(name=self.name, owner=new_owner(), ttl=60.0)

    @rule(target=claims)
    def try_once(self) -> Claim:
        claim = self.new_claim()
        grant = self.backend.acquire(claim, 0)
        if self.holder is None:
            self._granted(claim, grant)
        else:
            assert grant is None
        return claim

    @precondition(lambda self: self.holder is not None and len(self.queue) < 4)
    @rule(target=claims)
    def wait(self) -> Claim:
        claim = self.new_claim()

        def work() -> None:
            self.grants[claim.owner] = self.backend.acquire(claim, WAIT_TIMEOUT * 3)

        self.queue.append(claim)
        self.threads[claim.owner] = thread = threading.Thread(target=work)
        thread.start()
        until(lambda: self.raw.llen(f"{self.key}:waiters") == len(self.queue) + 1, "queueing")
        return claim

    @precondition(lambda self: self.queue)
    @rule(number=st.integers(0, 3))
    def give_up(self, number: int) -> None:
        claim = self.queue.pop(number % len(self.queue))
        claim.cancel()
        self.threads.pop(claim.owner).join(WAIT_TIMEOUT)
        assert self.grants.pop(claim.owner) is None

    @precondition(lambda self: self.holder is not None)
    @rule(depth=st.integers(1, 3))
    def enter_again(self, depth: int) -> None:
        self.backend.set_depth(self.holder, 0, depth)
        self.count = depth

    @precondition(lambda self: self.holder is not None)
    @rule()
    def extend(self) -> None:
        self.backend.extend(self.holder, 0, 120.0)

    @precondition(lambda self: self.holder is not None)
    @rule()
    def release(self) -> None:
        self.backend.release(self.holder, 0)
        self._next()

    @rule(claim=claims)
    def foreign_calls(self, claim: Claim) -> None:
        if claim is self.holder or claim in self.queue:
            return
        with pytest.raises(LockLost):
            self.backend.extend(claim, 0, 60.0)
        with pytest.raises(LockLost):
            self.backend.set_depth(claim, 0, 2)
        with pytest.raises(LockLost):
            self.backend.release(claim, 0)

    @rule()
    def break_it(self) -> None:
        assert self.backend.break_lock(self.name) is (self.holder is not None)
        if self.holder is not None:
            self._next()

    @precondition(lambda self: self.holder is not None)
    @rule()
    def expire(self) -> None:
        """End the grant; the next caller, here a new claim that tries once, notices it."""
        lost = self.holder
        self.raw.delete(self.key)
        newcomer = Claim(name=self.name, owner=new_owner(), ttl=60.0)
        grant = self.backend.acquire(newcomer, 0)
        if self.queue:
            assert grant is None, "a newcomer overtook"
            self._next()
        else:
            self._granted(newcomer, grant)
        with pytest.raises(LockLost):
            self.backend.extend(lost, 0, 60.0)

    @invariant()
    def redis_agrees(self) -> None:
        state = self.raw.hgetall(self.key)
        entries = [entry.decode() for entry in self.raw.lrange(f"{self.key}:waiters", 0, -1)]
        last, *waiting = [entry.split(" ", 3)[3] for entry in entries] or [""]
        assert waiting == [one.owner for one in self.queue]
        if self.holder is None:
            assert not state
        else:
            assert not waiting or last == self.holder.owner
            assert state[b"owner"].decode() == self.holder.owner
            assert int(state[b"count"]) == self.count
            assert self.raw.pttl(self.key) > 0


@pytest.fixture
def machine(redis_server: Redis) -> Iterator[type[RedisLock]]:
    backend = RedisBackend("redis", location=redis_server.url)
    with Client.from_url(redis_server.url) as raw:
        yield type("Machine", (RedisLock,), {"backend": backend, "raw": raw})
    backend.close()


def test_any_order_of_calls(machine: type[RedisLock]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
