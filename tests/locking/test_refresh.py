"""Values in the memory of one process, read once for all of its threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from locking.refresh import RefreshingCache, SharedCalls

LONG = 60.0
TIMEOUT = 5.0


class SlowRead:
    """A read that lasts until the test sets its result."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.outcome: Future[str] = Future()

    def __call__(self) -> str:
        self.started.set()
        return self.outcome.result(timeout=TIMEOUT)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def slow() -> SlowRead:
    return SlowRead()


def unexpected() -> str:
    raise AssertionError("No read was expected.")


def test_fresh_value_is_not_read_again() -> None:
    cache = RefreshingCache[str, str]()
    assert cache.get("a", lambda: "old", fresh=LONG, max_age=LONG) == "old"
    assert cache.get("a", unexpected, fresh=LONG, max_age=LONG) == "old"
    assert cache.get("b", lambda: "other", fresh=LONG, max_age=LONG) == "other"


@pytest.mark.parametrize(("fresh", "max_age"), [(0.0, LONG), (LONG, 0.0)])
def test_old_value_is_read_again(fresh: float, max_age: float) -> None:
    cache = RefreshingCache[str, str]()
    cache.get("a", lambda: "old", fresh=LONG, max_age=LONG)
    assert cache.get("a", lambda: "new", fresh=fresh, max_age=max_age) == "new"


def test_others_get_the_previous_value_during_a_refresh(pool, slow) -> None:
    cache = RefreshingCache[str, str]()
    cache.get("a", lambda: "old", fresh=LONG, max_age=LONG)
    refresh = pool.submit(cache.get, "a", slow, fresh=0.0, max_age=LONG)
    assert slow.started.wait(TIMEOUT)
    assert cache.get("a", unexpected, fresh=0.0, max_age=LONG) == "old"
    slow.outcome.set_result("new")
    assert refresh.result(TIMEOUT) == "new"
    assert cache.get("a", unexpected, fresh=LONG, max_age=LONG) == "new"


@pytest.mark.parametrize("error", [None, ValueError("store is down")])
def test_threads_without_a_value_share_one_read(pool, slow, error) -> None:
    cache = RefreshingCache[str, str]()
    first = pool.submit(cache.get, "a", slow, fresh=LONG, max_age=LONG)
    assert slow.started.wait(TIMEOUT)
    others = [pool.submit(cache.get, "a", unexpected, fresh=LONG, max_age=LONG) for _ in range(5)]
    assert not any(call.done() for call in others)
    if error is None:
        slow.outcome.set_result("new")
        assert {call.result(TIMEOUT) for call in (first, *others)} == {"new"}
    else:
        slow.outcome.set_exception(error)
        assert {call.exception(TIMEOUT) for call in (first, *others)} == {error}
        assert cache.get("a", lambda: "next", fresh=LONG, max_age=LONG) == "next"


def test_failed_refresh_keeps_the_previous_value() -> None:
    cache = RefreshingCache[str, str]()
    cache.get("a", lambda: "old", fresh=LONG, max_age=LONG)
    with pytest.raises(AssertionError):
        cache.get("a", unexpected, fresh=0.0, max_age=LONG)
    assert cache.get("a", unexpected, fresh=LONG, max_age=LONG) == "old"


def test_read_that_began_before_clear_is_not_kept(pool, slow) -> None:
    cache = RefreshingCache[str, str]()
    before = pool.submit(cache.get, "a", slow, fresh=LONG, max_age=LONG)
    assert slow.started.wait(TIMEOUT)
    cache.clear()
    assert cache.get("a", lambda: "after", fresh=LONG, max_age=LONG) == "after"
    slow.outcome.set_result("before")
    assert before.result(TIMEOUT) == "before"
    assert cache.get("a", unexpected, fresh=LONG, max_age=LONG) == "after"


def test_number_of_entries_is_bounded() -> None:
    cache = RefreshingCache[int, str](max_entries=2)
    for key in (1, 2, 3):
        cache.get(key, lambda: "old", fresh=LONG, max_age=LONG)
    assert cache.get(3, unexpected, fresh=LONG, max_age=LONG) == "old"
    assert cache.get(1, lambda: "new", fresh=LONG, max_age=LONG) == "new"


def test_waiting_thread_takes_over_an_interrupted_call(pool, slow) -> None:
    calls = SharedCalls[str, str]()
    first = pool.submit(calls.call, "a", slow)
    assert slow.started.wait(TIMEOUT)
    second = pool.submit(calls.call, "a", lambda: "second")
    slow.outcome.set_exception(SystemExit())
    assert isinstance(first.exception(TIMEOUT), SystemExit)
    assert second.result(TIMEOUT) == "second"
    assert "a" not in calls


def test_forked_child_does_not_wait_for_a_thread_of_its_parent(pool, slow) -> None:
    cache = RefreshingCache[str, str]()
    pool.submit(cache.get, "a", slow, fresh=LONG, max_age=LONG)
    assert slow.started.wait(TIMEOUT)
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get("a", lambda: "child", fresh=LONG, max_age=LONG) == "child" else 1)
    slow.outcome.set_result("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
