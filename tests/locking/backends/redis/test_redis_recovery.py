"""A lost machine, a hand-over whose reply is lost, and limits of time and of clocks."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import redis as client

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockMisuse, LockUnavailable
from locking.backends.redis import backend as module
from locking.backends.redis.pool import redis_breaker
from locking.claims import Claim
from locking.names import SEMAPHORE_PREFIX
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.redis.redis_tools import Connect, claim, connect, server, waiting

__all__ = ["connect", "server"]


@pytest.fixture
def proxy(server: Redis) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(server.port) as proxy:
        yield proxy


def queue_length(raw: client.Redis, name: str) -> int:
    return raw.llen(f"lock:{{{name}}}:waiters")


@pytest.mark.faults(row=1, backend="redis", fired="connections that stay half-open")
@pytest.mark.parametrize("slots", [None, 1], ids=["lock", "semaphore"])
def test_lost_machine_with_many_waiters_costs_two_leases(
    server: Redis, proxy: InterceptingProxy, connect: Connect, slots: int | None
) -> None:
    """Six processes of one machine wait. It is lost: their connections stay open at the server."""
    lost, direct = connect(f"redis://{proxy.url}/0"), connect(server.url)
    name = f"{SEMAPHORE_PREFIX if slots else ''}n"

    def ask(owner: str, ttl: float) -> Claim:
        asked = Claim(name=name, owner=owner, ttl=ttl)
        asked.slots = slots
        return asked

    holder, last = ask("here:1:1:a", 60.0), ask("here:2:1:b", 60.0)
    granted: list[str] = []
    grant = direct.acquire(holder, 0)
    assert grant
    with (
        client.Redis.from_url(server.url, decode_responses=True) as raw,
        ThreadPoolExecutor(7) as pool,
    ):
        claims = [ask(f"lost:{number}:1:c", 0.6) for number in range(6)]
        calls: list[tuple[object, Claim]] = [*((lost, one) for one in claims), (direct, last)]
        waits = []
        for number, (backend, one) in enumerate(calls, 1):
            waits.append(pool.submit(backend.acquire, one, WAIT_TIMEOUT))
            until(lambda number=number: queue_length(raw, name) == number + (not slots), "queueing")
        proxy.hold()
        direct.release(holder, grant.token)

        def is_served() -> bool:
            granted.extend(held.owner for held in direct.holders(name))
            return waits[-1].done()

        until(is_served, "the waiter of another machine")
        assert waits[-1].result() is not None
        dead = {owner for owner in granted if owner.startswith("lost:")}
        assert dead, "no grant went to the lost machine: the test proves nothing"
        assert len(dead) <= 2
        direct.release(last, 0)
        proxy.cut(refuse=True)
        proxy.resume()
        for wait in waits[:-1]:
            with pytest.raises(LockUnavailable):
                wait.result(WAIT_TIMEOUT)


def test_killed_process_does_not_cost_the_others_of_its_machine_their_places(
    server: Redis, connect: Connect
) -> None:
    """The control: only a machine whose connections stay open is taken for lost."""
    backend, order = connect(server.url), list[str]()

    def wait(asked: Claim) -> None:
        assert backend.acquire(asked, WAIT_TIMEOUT)
        order.append(asked.owner)
        backend.release(asked, 0)

    backend.acquire(Claim(name="n", owner="one:1:1:a", ttl=0.5), 0)  # never released
    owners = ["one:2:1:b", "two:1:1:c", "one:3:1:d", "two:2:1:e"]
    with ThreadPoolExecutor(4) as pool:
        waits = []
        for number, owner in enumerate(owners, 1):
            waits.append(pool.submit(wait, Claim(name="n", owner=owner, ttl=30.0)))
            until(lambda number=number: waiting(backend) == number, "queueing")
        for one in waits:
            one.result(WAIT_TIMEOUT)
    assert order == owners


class TestTakeOver:
    def test_waiters_stay_behind_the_new_holder(self, server: Redis, connect: Connect) -> None:
        backend, giver, taker, waiter = connect(server.url), claim(), claim(), claim()
        grant = backend.acquire(giver, 0)
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(backend.acquire, waiter, WAIT_TIMEOUT)
            until(lambda: waiting(backend) == 1, "queueing")
            backend.set_depth(giver, grant.token, 0)
            taken = backend.take_over(taker, giver.owner, grant.token)
            assert not wait.done()
            backend.release(taker, taken.token)
            assert wait.result(WAIT_TIMEOUT).token > taken.token


def test_extension_gives_up_while_the_grant_still_lasts(
    server: Redis, proxy: InterceptingProxy, connect: Connect
) -> None:
    """SOCKET_TIMEOUT is longer than the ttl. One late reply does not stop other locks, either."""
    url = f"redis://{proxy.url}/0"
    backend, short = connect(url, SOCKET_TIMEOUT=60.0), claim(ttl=8.0)
    grant = backend.acquire(short, 0)
    proxy.hold_replies()
    with ThreadPoolExecutor(1) as pool, pytest.raises(LockUnavailable, match="within 2 s"):
        pool.submit(backend.extend, short, grant.token, 8.0).result(WAIT_TIMEOUT)
    assert not redis_breaker(url).is_open
    proxy.resume()
    assert backend.extend(short, grant.token, 8.0) > grant.deadline


def test_refused_number_of_slots_keeps_the_connection(server: Redis, connect: Connect) -> None:
    backend = connect(server.url)
    for slots, outcome in ((2, nullcontext()), (3, pytest.raises(LockMisuse, match="slots=2"))):
        asked = Claim(name=f"{SEMAPHORE_PREFIX}n", ttl=30.0)
        asked.slots = slots
        with outcome:
            backend.acquire(asked, 0)
        assert (len(backend.pool), len(backend.pool.connections)) == (1, 1)


def test_one_lock_is_read_with_one_command(server: Redis, connect: Connect) -> None:
    backend = connect(server.url)
    held = [Claim(name=f"{number}", ttl=60.0) for number in range(50)]
    for one in held:
        assert backend.acquire(one, 0)
    backend.holders("7")  # sends the script
    with client.Redis.from_url(server.url) as raw:
        before = raw.info("stats")["total_commands_processed"]
        (found,) = backend.holders("7")
        used = raw.info("stats")["total_commands_processed"] - before
    assert found.owner == held[7].owner
    assert backend.holders("50") == []
    # INFO, EVALSHA, and the commands of the script.
    assert used <= 5


def test_clock_that_is_a_century_ahead_does_not_exhaust_the_tokens(
    server: Redis, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token has 63 bits, which last until the year 2112."""
    backend, tokens = connect(server.url), list[int]()

    def acquire() -> None:
        asked = claim()
        grant = backend.acquire(asked, 0)
        assert grant
        backend.release(asked, grant.token)
        tokens.append(grant.token)

    acquire()
    with monkeypatch.context() as patch:
        patch.setattr(module.time, "time_ns", lambda: 6_000_000_000 * 10**9)
        acquire()
    acquire()
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 1 << 62
