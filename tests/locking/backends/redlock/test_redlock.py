"""RedLock on five healthy masters: votes, undo, waiting, leaks, settings."""

import time
from typing import Any

import pytest

from devservers.faults.waiting import until
from locking import LockMisuse
from locking.backends.redlock.backend import RedLockBackend
from tests.locking.backends.redlock.redlock_masters import (
    FIRST_THREE,
    KEY,
    NAME,
    Masters,
    claim,
    connected,
    masters,
    take,
)
from tests.locking.calls import store_of

__all__ = ["masters"]


class Interrupted(BaseException):
    """Raised by a signal handler."""


@pytest.fixture
def backend(masters: Masters) -> RedLockBackend:
    """A connected backend with a long node timeout, because the machine may be busy."""
    return connected(masters.client(NODE_TIMEOUT=1))


class TestVotes:
    def test_lease_ends_before_its_keys(self, masters: Masters, backend: RedLockBackend) -> None:
        """A grant is valid for its ttl less the elapsed time and the clock drift."""
        started = time.monotonic()
        _, grant = take(backend, ttl=10)
        took = time.monotonic() - started
        assert 10 - 0.102 <= grant.deadline - started <= 10 - 0.102 + took
        assert masters.raw[0].pttl(KEY) / 1000 + time.monotonic() > grant.deadline

    def test_inspect_ignores_a_minority(self, masters: Masters, backend: RedLockBackend) -> None:
        masters.plant(0, 1, value="host:1:1:left over 17")
        assert backend.inspect() == []
        masters.plant(2, value="host:1:1:left over 17")
        (held,) = backend.inspect()
        assert (held.name, held.owner, held.token) == (NAME, "host:1:1:left over", 17)

    def test_inspect_returns_what_a_silent_master_may_have_granted(self, masters: Masters) -> None:
        """Three masters granted it, and one of them is stopped."""
        for server in masters.servers[3:]:
            server.pause()
        take(masters.client())
        for server in masters.servers[3:]:
            server.resume()
        until(lambda: masters.values()[3:] == [None, None], "the votes of the last two")
        masters.plant(3, value="host:1:1:left over 17")
        masters.servers[0].pause()
        held = masters.client().inspect()
        assert [(one.name, one.owner == "host:1:1:left over") for one in held] == [(NAME, False)]

    def test_prefix_is_not_used_as_a_pattern(self, masters: Masters) -> None:
        odd, plain = masters.client(PREFIX="l[ao]ck*:"), masters.client(PREFIX="lack:")
        take(plain)
        assert odd.inspect() == []
        take(odd)
        assert [held.name for held in odd.inspect()] == [NAME]

    def test_late_replies_do_not_count_for_later_claims(
        self, masters: Masters, backend: RedLockBackend
    ) -> None:
        """The masters are paused in turn, so each has a late reply."""
        for number in range(10):
            paused = masters.servers[number % 5]
            paused.pause()
            asked, grant = take(backend)
            backend.release(asked, grant.token)
            paused.resume()
            masters.plant(*range(5))
            assert backend.acquire(claim(), 0) is None, "a late yes was counted"
            masters.uproot(*range(5))


class TestWaiting:
    @pytest.mark.parametrize("step", ["sendall", "recv", "feed", "gets"])
    def test_exception_after_any_step_leaves_no_votes(
        self, masters: Masters, backend: RedLockBackend, step: str
    ) -> None:
        """A signal handler raises it after the step was done."""
        masters.plant(*FIRST_THREE)
        (quorum,) = backend.pool.connections
        connection = next(c for c in quorum.connections() if c.url == masters.urls[4])
        raised: list[Interrupted] = []

        class Interrupting:
            def __init__(self, of: Any) -> None:
                self._of = of

            def __getattr__(self, name: str) -> Any:
                def do(*args: Any) -> Any:
                    done = getattr(self._of, name)(*args)
                    if name == step and not raised:
                        raised.append(Interrupted())
                        raise raised[0]
                    return done

                return do

        for part in ("socket", "_reader"):
            setattr(connection, part, Interrupting(getattr(connection, part)))
        with pytest.raises(Interrupted):
            backend.acquire(claim(), 60)
        until(lambda: masters.values()[3:] == [None, None], "the undo")
        assert raised


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, ["locking.W036"]),
            ({"RESTART_DELAY": 0.0}, []),  # a decision about the masters' persistence
            ({"RESTART_DELAY": 6.0, "NODE_TIMEOUT": 0.6}, []),
        ],
    )
    def test_restart_delay_must_be_set(self, options: dict[str, float], expected: object) -> None:
        conf = {"LOCATION": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)], "OPTIONS": options}
        found = [*RedLockBackend.check("x", conf), *RedLockBackend.check_store("x", conf)]
        assert [message.id for message in found] == expected

    @pytest.mark.parametrize(("ttl", "why"), [(7, "RESTART_DELAY"), (0.002, "drift")])
    def test_ttl_that_can_not_hold_is_refused(self, masters: Masters, ttl: float, why: str) -> None:
        """It is above the restart delay, or below what clocks may drift."""
        with pytest.raises(LockMisuse, match=why):
            masters.client(RESTART_DELAY=6).acquire(claim(ttl=ttl), 0)

    def test_extension_that_can_not_hold_changes_nothing(self, backend: RedLockBackend) -> None:
        """The watchdog renews for the ttl of before."""
        with store_of(backend).lock(NAME, ttl=10, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="drift"):
                lease.extend(0.002)
            lease.renew()
            assert lease.remaining > 9
