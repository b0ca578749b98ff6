"""`locking.single_flight`: which caller builds, which ones wait, and what each of them gets."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.core.cache import caches

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from devservers.process_pool import ProcessPool
from locking import LockMisuse, LockTimeout, locks, metrics, refresh, single_flight
from locking.backends.redis.scripts import RELEASE
from locking.refresh import SharedCalls
from locking.single_flight import SingleFlight
from locking.threads import start_thread
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.held_call import HeldCall, unexpected

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
UNREACHABLE = "redis://127.0.0.1:1/0"
AT_ONCE = 1e-6
"""A ttl that has expired when the call returns."""
KEPT, EXPIRED = {"ttl": 60.0, "stale": 60.0}, {"ttl": AT_ONCE, "stale": 60.0}


@pytest.fixture
def flight() -> Iterator[SingleFlight]:
    caches["default"].clear()
    yield SingleFlight(CACHE="default", LOCK="redis", LOCK_TTL=60)
    caches["default"].clear()


@pytest.fixture
def other() -> SingleFlight:
    """A second instance, as in another process: it shares only the cache and the lock."""
    return SingleFlight(CACHE="default", LOCK="redis", LOCK_TTL=60)


class CountingProxy(InterceptingProxy):
    """Counts the messages of clients."""

    sent = 0

    def _send_request(self, *request: Any) -> None:
        self.sent += 1
        super()._send_request(*request)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def begun(
    threads: ThreadPoolExecutor, flight: SingleFlight, key: str, value: object
) -> tuple[Future[Any], HeldCall]:
    """Begin a build in another thread; return its call and the build, to be ended."""
    build = HeldCall(value)
    builder = threads.submit(flight.get_or_build, key, build, **KEPT)
    build.wait_until_started()
    return builder, build


def expired(flight: SingleFlight, key: str, value: object) -> None:
    """Keep a value that is not fresh, with a free lock."""
    flight.get_or_build(key, lambda: value, **EXPIRED)
    until_released(key)


def until_released(key: str) -> None:
    """Wait for the release of a build's lock, for which its caller has not waited."""
    until(lambda: not locks["redis"].backend.holders(f"build:{key}"), "the release")


def counted(key: str) -> dict[str, int]:
    kind = key.partition(":")[0]
    return {
        sample.labels["outcome"]: int(sample.value)
        for metric in metrics.LOOKUPS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["kind"] == kind
    }


@pytest.mark.parametrize("value", [{"a": 1}, None, 0, ()])
def test_built_value_is_kept_even_if_it_is_none(flight, value):
    assert flight.get_or_build("kept:1", lambda: value, **KEPT) == value
    assert flight.get_or_build("kept:1", unexpected, **KEPT) == value
    assert flight.get_or_build("kept:2", lambda: "other", **KEPT) == "other"


def test_value_older_than_stale_is_built_again(flight):
    flight.get_or_build("old:1", lambda: "old", ttl=AT_ONCE, stale=AT_ONCE)
    assert flight.get_or_build("old:1", lambda: "new", ttl=AT_ONCE, stale=AT_ONCE) == "new"


def test_others_get_the_stale_value_during_a_build(flight, other, threads):
    expired(flight, "stale:1", "old")
    builder, build = begun(threads, flight, "stale:1", "new")
    assert flight.get_or_build("stale:1", unexpected, **KEPT) == "old"
    assert other.get_or_build("stale:1", unexpected, **KEPT) == "old"
    assert counted("stale:1")["stale"] == 2
    assert not builder.done()
    build.end()
    assert builder.result(WAIT_TIMEOUT) == "new"
    assert other.get_or_build("stale:1", unexpected, **KEPT) == "new"


def test_caller_without_a_value_waits_for_the_builder(flight, other, threads, settings):
    build = HeldCall("new")
    readers = [threads.submit(flight.get_or_build, "wait:1", build, **KEPT)]
    build.wait_until_started()
    for home in (flight, flight, other):
        settings.LOCK_SINGLE_FLIGHT = {"TIMEOUT": 0.01}
        with pytest.raises(LockTimeout):
            home.get_or_build("wait:1", unexpected, **KEPT)
        del settings.LOCK_SINGLE_FLIGHT
        readers.append(threads.submit(home.get_or_build, "wait:1", unexpected, **KEPT))
    build.end()
    assert [reader.result(WAIT_TIMEOUT) for reader in readers] == ["new"] * 4
    outcomes = counted("wait:1")
    # A caller that looked up the value after the build has not waited.
    assert outcomes.get("wait", 0) + outcomes.get("hit", 0) == 3


def test_value_is_built_again_in_four_round_trips(settings):
    with Redis() as redis, CountingProxy(redis.port) as proxy:
        url, patient = f"redis://{proxy.url}", {"SOCKET_TIMEOUT": WAIT_TIMEOUT}
        settings.LOCKS = {"redis": {**settings.LOCKS["redis"], "LOCATION": url, "OPTIONS": patient}}
        cache = settings.CACHES["default"]
        options = {**cache["OPTIONS"], "socket_timeout": WAIT_TIMEOUT}
        settings.CACHES = {"default": {**cache, "LOCATION": url, "OPTIONS": options}}
        flight = SingleFlight(LOCK="redis", LOCK_TTL=60.0)
        for number in range(2):  # the second time, the server has the scripts
            expired(flight, "trips:1", number)
        release, before = proxy.hold_request(RELEASE.sha.encode()), proxy.sent
        assert flight.get_or_build("trips:1", lambda: "new", **KEPT) == "new"
        release.is_held.wait(WAIT_TIMEOUT)
        # Lookup, lock, lookup under the lock, value; and a release without a wait.
        assert proxy.sent - before == 5
        assert locks["redis"].backend.holders("build:trips:1")
        release.deliver()
        until_released("trips:1")


def test_threads_share_a_lookup_until_invalidation(flight, threads):
    flight.get_or_build("look:1", lambda: "seen", **KEPT)
    cache = caches["default"]
    lookup = HeldCall(cache.get_many(["value:look:1", "version:look"]))
    with (
        patch.object(type(cache), "get_many", lambda self, names: lookup()),
        patch.object(Future, "result", autospec=True, side_effect=Future.result) as waits,
    ):
        read = partial(threads.submit, flight.get_or_build, "look:1", unexpected, **KEPT)
        readers = [read() for _ in range(8)]
        until(lambda: waits.call_count == 7, "the waits of the others")
        assert lookup.count == 1
        flight.invalidate("look")
        readers.append(read())
        until(lambda: lookup.count == 2, "another lookup")
        lookup.end()
    assert [reader.result(WAIT_TIMEOUT) for reader in readers] == ["seen"] * 9


def test_builder_without_its_lease_does_not_store(flight):
    def build() -> str:
        lease, *_ = locks["redis"].held.values()
        lease.mark_lost()
        return "late"

    assert flight.get_or_build("lost:1", build, **KEPT) == "late"
    assert flight.get_or_build("lost:1", lambda: "new", **KEPT) == "new"


def test_failed_build_keeps_the_stale_value(flight, caplog):
    expired(flight, "fails:1", "old")
    assert flight.get_or_build("fails:1", lambda: 1 / 0, **KEPT) == "old"
    assert "serving the stale value" in caplog.text
    assert flight.get_or_build("fails:1", lambda: "new", **KEPT) == "new"


def test_failed_build_raises_in_every_waiting_caller(flight, threads):
    builder, build = begun(threads, flight, "fails:2", ZeroDivisionError())
    with patch.object(Future, "exception", autospec=True, side_effect=Future.exception) as asked:
        waits = threads.submit(flight.get_or_build, "fails:2", unexpected, **KEPT)
        until(lambda: asked.called, "the wait")
        build.end()
        for reader in (builder, waits):
            with pytest.raises(ZeroDivisionError):
                reader.result(WAIT_TIMEOUT)
    assert flight.get_or_build("fails:2", lambda: "new", **KEPT) == "new"


def test_interrupted_builder_is_replaced(flight, threads):
    builder, build = begun(threads, flight, "stopped:1", KeyboardInterrupt())
    waits = threads.submit(flight.get_or_build, "stopped:1", lambda: "new", **KEPT)
    build.end()
    with pytest.raises(KeyboardInterrupt):
        builder.result(WAIT_TIMEOUT)
    assert waits.result(WAIT_TIMEOUT) == "new"


def test_interrupt_at_any_line_leaves_no_call_pending():
    """As a signal handler raises it; `line` counts those of the module that the call reaches."""
    line = 0
    while is_interrupted_at(line := line + 1, calls := SharedCalls[str, str]()):
        next_call = start_thread(partial(calls.call, "key", lambda: "next"))
        assert next_call.result(WAIT_TIMEOUT) == "next", f"interrupted at line {line}"
    assert line > 8, "no line was interrupted: the test proves nothing"


def is_interrupted_at(line: int, calls: SharedCalls[str, str]) -> bool:
    """Make a call that is interrupted at its line with this number; False if it has fewer."""
    left = line

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != refresh.__file__:
            return None
        left -= event == "line"
        if not left:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        calls.call("key", lambda: "first")
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("is_invalidated", [True, False])
def test_build_from_before_invalidation_is_not_served(flight, other, threads, is_invalidated):
    expired(flight, "shop:1", "before that")
    builder, build = begun(threads, flight, "shop:1", "read before the change")
    if is_invalidated:  # the control shows that the late value is served otherwise
        other.invalidate("shop", "another")
    build.end()
    builder.result(WAIT_TIMEOUT)
    after = flight.get_or_build("shop:1", lambda: "after", **KEPT)
    assert after == ("after" if is_invalidated else "read before the change")
    assert other.get_or_build("shop:1", unexpected, **KEPT) == after


def test_invalidated_value_stays_outdated_when_its_version_is_evicted(flight):
    flight.get_or_build("evicted:1", lambda: "old", **KEPT)
    flight.invalidate("evicted")
    caches["default"].delete("version:evicted")
    assert flight.get_or_build("evicted:1", lambda: "new", **KEPT) == "new"


def test_later_caller_does_not_join_an_outdated_build(flight, threads):
    builder, build = begun(threads, flight, "join:1", "before")
    flight.invalidate("join")
    late = threads.submit(flight.get_or_build, "join:1", lambda: "after", **KEPT)
    until(lambda: [one.waiters for one in locks["redis"].inspect()] == [1], "a second builder")
    build.end()
    assert builder.result(WAIT_TIMEOUT) == "before"
    assert late.result(WAIT_TIMEOUT) == "after"


class Renamed:
    """A class that a later version of the program no longer has under this name."""


@pytest.fixture
def without_renamed(monkeypatch) -> Callable[[], None]:
    return partial(monkeypatch.delattr, "tests.locking.test_single_flight.Renamed")


def test_value_of_a_removed_class_is_built_again(flight, other, without_renamed):
    flight.get_or_build("renamed:1", Renamed, **KEPT)
    flight.get_or_build("beside:1", lambda: "kept", **KEPT)
    without_renamed()
    assert other.get_or_build("renamed:1", lambda: "new", **KEPT) == "new"
    assert other.get_or_build("beside:1", unexpected, **KEPT) == "kept", "the cache is off"
    assert flight.get_or_build("renamed:1", unexpected, **KEPT) == "new"


def test_value_that_cannot_be_kept_concerns_only_its_key(flight, caplog):
    flight.get_or_build("beside:2", lambda: "kept", **KEPT)
    build = iter([lambda: 1, lambda: 2]).__next__
    first, second = (flight.get_or_build("lambda:1", build, **KEPT) for _ in range(2))
    assert (first(), second()) == (1, 2)
    assert "'lambda:1' cannot be kept" in caplog.text
    assert flight.get_or_build("beside:2", unexpected, **KEPT) == "kept", "the cache is off"


def test_build_that_asks_for_its_own_key_is_refused(flight):
    with pytest.raises(LockMisuse, match="'self:1' asks for itself"):
        flight.get_or_build("self:1", partial(recursive, flight), **KEPT)
    assert flight.get_or_build("self:1", lambda: "built", **KEPT) == "built"


def recursive(flight: SingleFlight) -> object:
    inner = partial(flight.get_or_build, "self:1", unexpected, **KEPT)
    return flight.get_or_build("self:2", inner, **KEPT)


@pytest.mark.parametrize(
    "durations",
    [{"ttl": 0}, {"ttl": float("inf")}, {"ttl": "5"}, {"ttl": 1, "stale": -1}],
)
def test_invalid_durations_and_options_are_refused(flight, durations):
    with pytest.raises(LockMisuse, match="give ttl > 0"):
        flight.get_or_build("bad:1", unexpected, **durations)
    with pytest.raises(LockMisuse, match="CAHCE"):
        SingleFlight(CAHCE="default")


@pytest.fixture
def gone(settings: Any) -> None:
    """A cache and a lock without a server."""
    settings.CACHES = {"gone": {**settings.CACHES["default"], "LOCATION": UNREACHABLE}}
    redis = {**settings.LOCKS["redis"], "LOCATION": UNREACHABLE}
    settings.LOCKS = {**settings.LOCKS, "gone": redis}


def test_without_cache_one_thread_at_a_time_builds(gone, threads, caplog):
    flight = SingleFlight(CACHE="gone", LOCK="gone")
    builder, build = begun(threads, flight, "down:1", "built")
    assert "Cache unavailable" in caplog.text
    with patch.object(Future, "exception", autospec=True, side_effect=Future.exception) as asked:
        readers = [
            threads.submit(flight.get_or_build, "down:1", unexpected, **KEPT) for _ in range(25)
        ]
        until(lambda: asked.call_count == len(readers), "all waits")
        build.end()
        assert [reader.result(WAIT_TIMEOUT) for reader in (builder, *readers)] == ["built"] * 26
    flight.invalidate("down")
    assert "not invalidated" in caplog.text
    assert flight.get_or_build("down:1", lambda: "again", **KEPT) == "again"


def test_forked_child_does_not_wait_for_its_parent(gone, threads):
    flight = SingleFlight(CACHE="gone", LOCK="gone")
    builder, build = begun(threads, flight, "fork:1", "parent")
    with ProcessPool(lambda number: flight.get_or_build("fork:1", lambda: "child", **KEPT)) as pool:
        assert pool.results() == ["child"]
    build.end()
    assert builder.result(WAIT_TIMEOUT) == "parent"


def test_failed_cache_is_not_used_for_a_second(settings, monkeypatch):
    monkeypatch.setattr(single_flight, "CACHE_PAUSE", WAIT_TIMEOUT)
    with Redis() as redis:
        options = {**settings.CACHES["default"]["OPTIONS"], "socket_timeout": 1.0, "retry": None}
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
        later = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + WAIT_TIMEOUT)
        monkeypatch.setattr(single_flight, "time", later)
        assert flight.get_or_build("mute:1", unexpected, **KEPT) == "old"


def test_value_is_stored_while_the_lock_is_down(gone, settings):
    settings.CACHES = {"local": {"BACKEND": LOCMEM, "LOCATION": "no lock"}}
    flight = SingleFlight(CACHE="local", LOCK="gone")
    assert flight.get_or_build("lone:1", lambda: "built", **KEPT) == "built"
    assert flight.get_or_build("lone:1", unexpected, **KEPT) == "built"


def test_every_cache_accepts_the_names_of_values(settings):
    """Django warns of a name that Memcached refuses, and the warning is an error here."""
    key = "two words:and more"
    settings.CACHES = {"local": {"BACKEND": LOCMEM, "LOCATION": "names"}}
    flight = SingleFlight(CACHE="local", LOCK="process")
    assert flight.get_or_build(key, lambda: "built", **KEPT) == "built"
    assert flight.get_or_build(key, unexpected, **KEPT) == "built"
    flight.invalidate("two words")
    assert flight.get_or_build(key, lambda: "again", **KEPT) == "again"


@pytest.mark.django_db(transaction=True)
def test_lock_of_the_policy_is_used_without_an_alias():
    flight = SingleFlight(CACHE="default", LOCK=None)
    assert flight.get_or_build("policy:1", lambda: "built", **KEPT) == "built"
    assert flight.get_or_build("policy:1", unexpected, **KEPT) == "built"
