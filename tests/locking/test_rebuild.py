"""`locking.single_flight`: who builds, who waits, and what everybody gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest
from django.core.cache import caches

from devservers import Redis
from loadtest.faults.waiting import WAIT_TIMEOUT, until
from loadtest.load.process_pool import ProcessPool
from locking import LockMisuse, LockTimeout, locks, metrics
from locking.rebuild import SingleFlight

NOBODY = "redis://127.0.0.1:1/0"
AT_ONCE = 1e-6
"""A ttl that is over when the call returns."""
KEPT = {"ttl": 60.0, "stale": 60.0}
EXPIRED = {"ttl": AT_ONCE, "stale": 60.0}


@pytest.fixture(params=["locmem", "redis"])
def options(request: pytest.FixtureRequest, settings: Any) -> Iterator[dict[str, str]]:
    """A cache with a lock that reaches as far."""
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "rebuild"}
    settings.CACHES = {**settings.CACHES, "local": local}
    caches["local"].clear()
    caches["default"].clear()
    yield {
        "locmem": {"CACHE": "local", "LOCK": "process"},
        "redis": {"CACHE": "default", "LOCK": "redis"},
    }[request.param]
    caches["local"].clear()


@pytest.fixture
def flight(options: dict[str, str]) -> SingleFlight:
    return SingleFlight(**options)


@pytest.fixture
def other(options: dict[str, str]) -> SingleFlight:
    """What another process would have: it meets `flight` at the lock and in the cache alone."""
    return SingleFlight(**options)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


class Held:
    """A build that begins, and ends when it is told to."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.builds = 0
        self._begun, self._go = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.builds += 1
        self._begun.set()
        assert self._go.wait(WAIT_TIMEOUT)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def begun(self) -> None:
        """Wait until it has begun."""
        assert self._begun.wait(WAIT_TIMEOUT)

    def end(self) -> None:
        self._go.set()


@pytest.fixture
def held() -> Iterator[Callable[[object], Held]]:
    builds: list[Held] = []

    def make(value: object) -> Held:
        builds.append(Held(value))
        return builds[-1]

    yield make
    for build in builds:
        build.end()


def never() -> Any:
    raise AssertionError("nobody was to build")


def counted(key: str) -> dict[str, int]:
    return metrics.flights(metrics.totals()).get(key.partition(":")[0], {})


# --- one process ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"a": 1}, None, 0, ()])
def test_what_was_built_is_kept_and_nothing_is_a_value_too(flight, value):
    assert flight.get_or_build("kept:1", lambda: value, **KEPT) == value
    assert flight.get_or_build("kept:1", never, **KEPT) == value
    assert flight.get_or_build("kept:2", lambda: "other", **KEPT) == "other"


def test_what_is_too_old_even_to_be_served_is_built_again(flight):
    flight.get_or_build("old:1", lambda: "old", ttl=AT_ONCE, stale=AT_ONCE)
    assert flight.get_or_build("old:1", lambda: "new", ttl=AT_ONCE, stale=AT_ONCE) == "new"


def test_while_one_builds_the_others_have_the_old_value_at_once(flight, other, held, threads):
    flight.get_or_build("stale:1", lambda: "old", **EXPIRED)
    build = held("new")
    builder = threads.submit(flight.get_or_build, "stale:1", build, **KEPT)
    build.begun()
    before = counted("stale:1").get("stale", 0)
    assert flight.get_or_build("stale:1", never, **KEPT) == "old"
    assert other.get_or_build("stale:1", never, **KEPT) == "old"
    assert counted("stale:1")["stale"] == before + 2
    assert not builder.done()
    build.end()
    assert builder.result(WAIT_TIMEOUT) == "new"
    assert other.get_or_build("stale:1", never, **KEPT) == "new"


def test_where_the_cache_is_slow_even_who_builds_has_the_old_value_at_once(flight, held, threads):
    flight.get_or_build("slow:1", lambda: "old", **EXPIRED)
    build = held("new")
    with patch("locking.rebuild.LATE", -1.0):
        assert threads.submit(flight.get_or_build, "slow:1", build, **KEPT).result(9) == "old"
        build.begun()
        assert flight.get_or_build("slow:1", never, **KEPT) == "old"
    build.end()
    until(lambda: flight.get_or_build("slow:1", never, **KEPT) == "new", "the new value")
    assert build.builds == 1


def test_a_build_for_nobody_that_fails_is_tried_again(flight, threads):
    flight.get_or_build("slow:2", lambda: "old", **EXPIRED)
    with patch("locking.rebuild.LATE", -1.0):
        assert flight.get_or_build("slow:2", never, **KEPT) == "old"
        until(lambda: flight.get_or_build("slow:2", lambda: "new", **KEPT) == "new", "another try")


def test_who_has_nothing_to_serve_waits_for_the_builder(flight, other, held, threads):
    build = held("new")
    readers = [threads.submit(flight.get_or_build, "wait:1", build, **KEPT)]
    build.begun()
    before = counted("wait:1").get("wait", 0)
    for home in (flight, flight, other):
        with patch.dict(home._options, TIMEOUT=0.01), pytest.raises(LockTimeout):
            home.get_or_build("wait:1", never, **KEPT)
        readers.append(threads.submit(home.get_or_build, "wait:1", never, **KEPT))
    build.end()
    assert [reader.result(WAIT_TIMEOUT) for reader in readers] == ["new"] * 4
    outcomes = counted("wait:1")
    # One that came to the cache only after the build has not waited.
    assert outcomes["wait"] + outcomes.get("hit", 0) == before + 3


def test_an_impatient_caller_gives_up_for_himself_alone(flight, other, held, threads):
    build = held("new")
    builder = threads.submit(other.get_or_build, "patience:1", build, **KEPT)
    build.begun()
    with patch.dict(flight._options, TIMEOUT=0.3):
        hasty = threads.submit(flight.get_or_build, "patience:1", never, **KEPT)
        until(lambda: flight._flights, "the first wait")
    patient = threads.submit(flight.get_or_build, "patience:1", never, **KEPT)
    with pytest.raises(LockTimeout):
        hasty.result(WAIT_TIMEOUT)
    build.end()
    assert [one.result(WAIT_TIMEOUT) for one in (builder, patient)] == ["new"] * 2


def test_who_saw_the_old_value_before_the_new_one_was_there_does_not_build(flight, other):
    flight.get_or_build("late:1", lambda: "old", **EXPIRED)
    saw_the_old = other._look("late:1", KEPT["stale"])
    flight.get_or_build("late:1", lambda: "new", **KEPT)
    with patch.object(other, "_look_together", return_value=saw_the_old):
        assert other.get_or_build("late:1", never, **KEPT) == "new"


def test_threads_share_a_look_at_the_cache_but_not_one_from_before_a_change(flight, held, threads):
    flight.get_or_build("look:1", lambda: "seen", **KEPT)
    look = held(flight._look("look:1", 0))
    with (
        patch.object(flight, "_look", lambda key, stale: look()),
        patch.object(Future, "result", autospec=True, side_effect=Future.result) as waits,
    ):
        readers = [threads.submit(flight.get_or_build, "look:1", never, **KEPT) for _ in range(8)]
        until(lambda: waits.call_count == 7, "all others")
        assert look.builds == 1
        flight.invalidate("look")
        readers.append(threads.submit(flight.get_or_build, "look:1", never, **KEPT))
        until(lambda: look.builds == 2, "another look")
        look.end()
    assert [reader.result(WAIT_TIMEOUT) for reader in readers] == ["seen"] * 9


def test_a_builder_that_lost_its_lock_keeps_its_value_to_itself(flight, options):
    def build() -> str:
        lease, *_ = locks[options["LOCK"]].held.values()
        lease.mark_lost()
        return "late"

    assert flight.get_or_build("lost:1", build, **KEPT) == "late"
    assert flight.get_or_build("lost:1", lambda: "new", **KEPT) == "new"


def test_a_build_that_fails_leaves_the_old_value(flight, caplog):
    flight.get_or_build("fails:1", lambda: "old", **EXPIRED)
    assert flight.get_or_build("fails:1", lambda: 1 / 0, **KEPT) == "old"
    assert "could not be built" in caplog.text
    assert flight.get_or_build("fails:1", lambda: "new", **KEPT) == "new"


def test_a_build_that_fails_with_nothing_to_serve_fails_for_who_waits(flight, held, threads):
    build = held(ZeroDivisionError())
    builder = threads.submit(flight.get_or_build, "fails:2", build, **KEPT)
    build.begun()
    with patch.object(Future, "exception", autospec=True, side_effect=Future.exception) as asked:
        waits = threads.submit(flight.get_or_build, "fails:2", never, **KEPT)
        until(lambda: asked.called, "the wait")
        build.end()
        for reader in (builder, waits):
            with pytest.raises(ZeroDivisionError):
                reader.result(WAIT_TIMEOUT)
    assert flight.get_or_build("fails:2", lambda: "new", **KEPT) == "new"


def test_a_builder_that_is_interrupted_is_replaced(flight, held, threads):
    build = held(KeyboardInterrupt())
    builder = threads.submit(flight.get_or_build, "stopped:1", build, **KEPT)
    build.begun()
    waits = threads.submit(flight.get_or_build, "stopped:1", lambda: "new", **KEPT)
    build.end()
    with pytest.raises(KeyboardInterrupt):
        builder.result(WAIT_TIMEOUT)
    assert waits.result(WAIT_TIMEOUT) == "new"


@pytest.mark.parametrize("is_invalidated", [True, False])
def test_what_was_read_before_a_change_is_not_served_after_it(
    flight, other, held, threads, is_invalidated
):
    flight.get_or_build("shop:1", lambda: "before that", **EXPIRED)
    build = held("read before the change")
    builder = threads.submit(flight.get_or_build, "shop:1", build, **KEPT)
    build.begun()
    if is_invalidated:  # else, as the control shows, the late answer stays
        other.invalidate("shop", "another")
    build.end()
    builder.result(WAIT_TIMEOUT)
    after = flight.get_or_build("shop:1", lambda: "after", **KEPT)
    assert after == ("after" if is_invalidated else "read before the change")
    assert other.get_or_build("shop:1", never, **KEPT) == after


def test_who_comes_after_a_change_does_not_join_a_build_from_before_it(flight, held, threads):
    build = held("before")
    builder = threads.submit(flight.get_or_build, "join:1", build, **KEPT)
    build.begun()
    flight.invalidate("join")
    late = threads.submit(flight.get_or_build, "join:1", lambda: "after", **KEPT)
    until(lambda: len(flight._flights) == 2, "a second builder")
    build.end()
    assert builder.result(WAIT_TIMEOUT) == "before"
    assert late.result(WAIT_TIMEOUT) == "after"
    assert flight._flights == {}


@pytest.mark.parametrize(
    "options_", [{"ttl": 0}, {"ttl": -1}, {"ttl": float("inf")}, {"ttl": 1, "stale": -1}]
)
def test_impossible_times_are_refused(flight, options_):
    with pytest.raises(LockMisuse):
        flight.get_or_build("bad:1", never, **options_)


def test_unknown_options_are_refused():
    with pytest.raises(LockMisuse, match="CAHCE"):
        SingleFlight(CAHCE="default")


# --- without its stores -----------------------------------------------------------------------


@pytest.fixture
def gone(settings: Any) -> None:
    """A cache and a lock that nobody serves."""
    settings.CACHES = {"gone": {**settings.CACHES["default"], "LOCATION": NOBODY}}
    redis = {**settings.LOCKS["redis"], "LOCATION": NOBODY}
    settings.LOCKS = {**settings.LOCKS, "gone": redis}


def test_without_the_cache_it_builds_once_at_a_time(gone, held, threads, caplog):
    flight = SingleFlight(CACHE="gone", LOCK="gone")
    build = held("built")
    builder = threads.submit(flight.get_or_build, "down:1", build, **KEPT)
    build.begun()
    assert "does not answer" in caplog.text
    with patch.object(Future, "exception", autospec=True, side_effect=Future.exception) as asked:
        readers = [threads.submit(flight.get_or_build, "down:1", never, **KEPT) for _ in range(25)]
        until(lambda: asked.call_count == len(readers), "all waits")
        build.end()
        assert [reader.result(WAIT_TIMEOUT) for reader in (builder, *readers)] == ["built"] * 26
    flight.invalidate("down")
    assert "stays" in caplog.text
    assert flight.get_or_build("down:1", lambda: "again", **KEPT) == "again"


def test_a_forked_child_does_not_wait_for_its_parents_builder(gone, held, threads):
    flight = SingleFlight(CACHE="gone", LOCK="gone")
    build = held("parent")
    builder = threads.submit(flight.get_or_build, "fork:1", build, **KEPT)
    build.begun()
    with ProcessPool(lambda number: flight.get_or_build("fork:1", lambda: "child", **KEPT)) as pool:
        assert pool.results() == ["child"]
    build.end()
    assert builder.result(WAIT_TIMEOUT) == "parent"


def test_a_silent_cache_is_asked_once_and_then_left_alone(settings):
    with Redis() as redis:
        options = {**settings.CACHES["default"]["OPTIONS"], "socket_timeout": 0.2, "retry": None}
        there = {**settings.CACHES["default"], "LOCATION": redis.url, "OPTIONS": options}
        settings.CACHES = {"there": there}
        flight = SingleFlight(CACHE="there", LOCK="process")
        assert flight.get_or_build("mute:1", lambda: "old", **KEPT) == "old"
        redis.pause()
        assert flight.get_or_build("mute:1", lambda: "new", **KEPT) == "new"
        with patch.object(caches["there"], "get_many") as asked:
            assert flight.get_or_build("mute:1", lambda: "newer", **KEPT) == "newer"
        asked.assert_not_called()
        redis.resume()
        until(
            lambda: flight.get_or_build("mute:1", lambda: "newest", **KEPT) == "old", "its return"
        )


def test_without_the_lock_it_builds_and_keeps(gone, settings):
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "no lock"}
    settings.CACHES = {"local": local}
    flight = SingleFlight(CACHE="local", LOCK="gone")
    assert flight.get_or_build("lone:1", lambda: "built", **KEPT) == "built"
    assert flight.get_or_build("lone:1", never, **KEPT) == "built"


@pytest.mark.django_db(transaction=True)
def test_the_policys_lock_does_as_well(options):
    flight = SingleFlight(CACHE=options["CACHE"], LOCK=None)
    assert flight.get_or_build("policy:1", lambda: "built", **KEPT) == "built"
    assert flight.get_or_build("policy:1", never, **KEPT) == "built"
