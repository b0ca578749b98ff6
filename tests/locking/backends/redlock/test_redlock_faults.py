"""FAULTS rows 6, 7, 9 and 17 at the level of the lock, on five real masters."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from devservers.faults.clock import Clock
from devservers.faults.waiting import until
from locking import LockLost, LockUnavailable
from locking.backends.redlock.quorum import master_breaker
from locking.testing.calls import until_available, within
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.redlock.redlock_masters import (
    FIRST_THREE,
    NAME,
    Masters,
    claim,
    connected,
    masters,
    take,
)

__all__ = ["masters"]


@pytest.fixture
def proxy(masters: Masters) -> Iterator[Callable[[int], InterceptingProxy]]:
    """Puts a proxy before a master, for the clients that are made afterwards."""
    with ExitStack() as stack:

        def before(number: int) -> InterceptingProxy:
            proxy = stack.enter_context(InterceptingProxy(masters.servers[number].port))
            masters.urls[number] = f"redis://{proxy.url}/0"
            return proxy

        yield before


class TestAmnesia:
    """Row 6: two masters are paused, A locks the other three, one of them restarts empty."""

    TTL = 6.0

    def restart_with_lease(self, masters: Masters, **options: float) -> float:
        """Do all that; return A's deadline. Masters 2, 3 and 4 then have no key."""
        for number in (3, 4):
            masters.servers[number].pause()
        _, grant = take(masters.client(**options), self.TTL)
        assert all(masters.value(number) for number in FIRST_THREE)
        masters.restart_empty(2)
        for number in (3, 4):
            masters.servers[number].resume()
        until(lambda: not any(master_breaker(url).is_open for url in masters.urls), "all of them")
        assert [value is None for value in masters.values()] == [False, False, True, True, True]
        return grant.deadline

    @pytest.mark.faults(row=6, backend="redlock")
    def test_restart_delay_prevents_a_second_vote(self, masters: Masters) -> None:
        """The lock stays listed as well: a switch of the backend relies on the list."""
        second = masters.client(RESTART_DELAY=self.TTL)
        until_available(second.probe)  # the restart delay is over
        deadline = self.restart_with_lease(masters, RESTART_DELAY=self.TTL)
        control = masters.client(NODE_TIMEOUT=1)
        assert control.inspect() == [], "the control: without the delay it is unknown"
        second = masters.client(RESTART_DELAY=self.TTL)
        assert [held.name for held in second.inspect()] == [NAME]
        assert second.acquire(claim(self.TTL), 0) is None, "masters 3 and 4 are not a majority"
        assert masters.value(2) is None, "the restarted master was asked"
        take(second, self.TTL, timeout=self.TTL * 3)
        assert time.monotonic() >= deadline

    def test_restarted_masters_grant_nothing(self, masters: Masters) -> None:
        backend = masters.client(RESTART_DELAY=60)
        with pytest.raises(LockUnavailable, match=r"0 of 5 .*60 s ago"):
            backend.acquire(claim(), 0)
        assert masters.values() == [None] * 5
        assert len(backend.nodes_down()) == 5


class TestClockJump:
    """Row 7: the clocks of some masters jump 31 s ahead while a lease of 30 s is held."""

    @pytest.fixture
    def clock(self, tmp_path: Path) -> Clock:
        return Clock(tmp_path)

    @pytest.fixture
    def masters(self, clock: Clock) -> Iterator[Masters]:
        five = Masters()
        for server in five.servers[:2]:
            clock.drive(server)
        with five:
            yield five

    @pytest.mark.faults(row=7, backend="redlock")
    def test_two_clocks_ahead_are_a_minority(self, masters: Masters, clock: Clock) -> None:
        _, grant = take(connected(masters.client(NODE_TIMEOUT=1)), ttl=30)
        until(lambda: all(masters.values()), "the late votes")
        clock.shift(31)
        assert masters.values()[:2] == [None, None], "the clocks did not jump"
        assert masters.client().acquire(claim(ttl=30), 0.3) is None
        assert time.monotonic() < grant.deadline
        until(lambda: masters.values()[:2] == [None, None], "the two votes being withdrawn")


class TestMastersDown:
    """Row 9; the contract kills a minority."""

    @pytest.mark.faults(row=9, backend="redlock")
    @pytest.mark.parametrize(("when", "node_timeout"), [("before", 0.2), ("while", 30)])
    def test_two_silent_masters_are_not_waited_for(
        self, masters: Masters, when: str, node_timeout: float
    ) -> None:
        """Not even by the first calls, which know nothing of them."""
        backend = masters.client(NODE_TIMEOUT=node_timeout)
        if when == "while":
            connected(backend)
        masters.pause(2)
        with within(15):
            asked, grant = take(backend)
            assert backend.extend(asked, grant.token, 90) > grant.deadline
            backend.release(asked, grant.token)

    @pytest.mark.faults(row=9, backend="redlock")
    @pytest.mark.parametrize("how", ["kill", "pause"])
    def test_three_unavailable_masters_leave_no_votes(self, masters: Masters, how: str) -> None:
        holder, other = connected(masters.client()), masters.client()
        held, grant = take(holder)
        for server in masters.servers[:3]:
            getattr(server, how)()
        for call in (
            lambda: holder.extend(held, grant.token, 60),
            lambda: holder.release(held, grant.token),
            lambda: holder.acquire(claim(), 0),
            lambda: other.acquire(claim(), 30),
        ):
            with within(15), pytest.raises(LockUnavailable, match="of 5 masters replied; 3 are"):
                call()
        until(lambda: not masters.value(3) and not masters.value(4), "the votes being withdrawn")
        for server in masters.servers[:3]:
            server.resume() if how == "pause" else server.start()
        until(lambda: masters.values() == [None] * 5, "the withdrawn votes")

        def all_vote() -> bool:
            asked, grant = take(holder)
            until(lambda: all(masters.values()[3:]), "the votes of those that stayed up")
            votes = masters.values()
            holder.release(asked, grant.token)
            return None not in votes

        until(all_vote, "the votes of those that have recovered")

    def test_extend_reports_a_majority_without_the_key(self, masters: Masters) -> None:
        backend = masters.client()
        asked, grant = take(backend)
        for number in FIRST_THREE:
            masters.restart_empty(number)
        with pytest.raises(LockLost):
            backend.extend(asked, grant.token, 60)
        with pytest.raises(LockLost):
            backend.release(asked, grant.token)
        until(lambda: masters.values() == [None] * 5, "the release at the other two")


class TestRefusals:
    """Row 17: an error reply is not a vote."""

    READONLY = ("REPLICAOF", "127.0.0.1", "1")
    FULL = ("CONFIG", "SET", "maxmemory", "1")
    LOCKED = ("CONFIG", "SET", "requirepass", "secret")

    @pytest.mark.faults(row=17, backend="redlock", fired="masters refuse")
    @pytest.mark.parametrize("command", [READONLY, FULL, LOCKED], ids=lambda words: words[-2])
    def test_error_replies_of_two_masters_are_tolerated(
        self, masters: Masters, command: tuple[str, ...]
    ) -> None:
        backend = connected(masters.client(NODE_TIMEOUT=1))
        for number in (0, 1):
            self.order(masters, number, command)
            asked, grant = take(backend, timeout=0)
            backend.release(asked, grant.token)
        self.order(masters, 2, command)
        for client in (backend, masters.client()):
            with pytest.raises(LockUnavailable) as caught:
                client.acquire(claim(), 0)
            assert caught.value.__cause__ is not None
        until(lambda: not masters.value(3) and not masters.value(4), "the undo")

    def order(self, masters: Masters, number: int, command: tuple[str, ...]) -> None:
        masters.raw[number].execute_command(*command)
        if command is self.LOCKED:  # connections that have logged in already stay
            masters.raw[number].client_kill_filter(_type="normal")


class TestLateSet:
    """Commands that arrive late; the contract holds those of a claim."""

    def test_late_break_spares_the_next_holder(
        self, masters: Masters, proxy: Callable[[int], InterceptingProxy]
    ) -> None:
        near = masters.client(NODE_TIMEOUT=1)
        near.location = list(masters.urls)
        late = [proxy(number).hold_request(containing=b"PEXPIRE") for number in FIRST_THREE]
        far = connected(masters.client(NODE_TIMEOUT=1))
        asked, grant = take(near)
        with ThreadPoolExecutor(1) as other:
            breaking = other.submit(far.break_lock, NAME)
            assert all(held.is_held.wait(20) for held in late)
            with suppress(LockLost):  # two masters have no proxy
                near.release(asked, grant.token)
            asked, grant = take(near)
            assert all(held.deliver() for held in late)
            assert breaking.result(30)
        near.extend(asked, grant.token, 60)

    def sets(self, masters: Masters, number: int) -> int:
        stats = masters.raw[number].info("commandstats")
        return stats.get("cmdstat_set", {"calls": 0})["calls"]

    def test_late_undo_does_not_affect_a_later_attempt(
        self, masters: Masters, proxy: Callable[[int], InterceptingProxy]
    ) -> None:
        """The first SET and its undo are held back; a second SET votes."""
        last = proxy(4)
        masters.plant(*FIRST_THREE)
        backend = connected(masters.client(NODE_TIMEOUT=1))
        held_back = last.hold_open_connections()
        asked = claim()
        with ThreadPoolExecutor(1) as other:
            attempts = other.submit(backend.acquire, asked, 30)
            until(lambda: self.sets(masters, 4), "an attempt by a new connection")
            masters.uproot(*FIRST_THREE)
            grant = attempts.result(30)
        mine = f"{asked.owner} {grant.token}"
        until(lambda: masters.value(4) == mine, "its vote")
        before = self.sets(masters, 4)
        held_back.set()
        until(lambda: self.sets(masters, 4) > before, "the SET that was held back")
        backend.extend(asked, grant.token, 60)  # runs after the undo
        assert masters.value(4) == mine
