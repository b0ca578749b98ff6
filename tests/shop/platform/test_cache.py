"""Values in the memory of one process, read once for all of its threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shop.platform.cache import RefreshingCache
from tests.locking.held_call import TIMEOUT, HeldCall, unexpected

LONG = 60.0
Cache = RefreshingCache[str, str]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def cache() -> Cache:
    return RefreshingCache(max_entries=2)


def get(
    cache: Cache,
    read: Callable[[], str] = unexpected,
    *,
    key: str = "a",
    fresh: float = LONG,
    max_age: float = LONG,
) -> str:
    return cache.get(key, read, fresh=fresh, max_age=max_age)


def test_fresh_value_is_not_read_again(cache) -> None:
    assert get(cache, lambda: "old") == get(cache) == "old"
    assert get(cache, lambda: "other", key="b") == "other"


@pytest.mark.parametrize(("fresh", "max_age"), [(0.0, LONG), (LONG, 0.0)])
def test_old_value_is_read_again(cache, fresh: float, max_age: float) -> None:
    get(cache, lambda: "old")
    assert get(cache, lambda: "new", fresh=fresh, max_age=max_age) == "new"


def test_others_get_the_previous_value_during_a_refresh(cache, pool) -> None:
    get(cache, lambda: "old")
    read = HeldCall("new")
    refresh = pool.submit(get, cache, read, fresh=0.0)
    read.wait_until_started()
    assert get(cache, fresh=0.0) == "old"
    read.end()
    assert refresh.result(TIMEOUT) == get(cache) == "new"


def test_failed_refresh_keeps_the_previous_value(cache) -> None:
    get(cache, lambda: "old")
    with pytest.raises(AssertionError):
        get(cache, fresh=0.0)
    assert get(cache) == "old"


def test_read_that_began_before_clear_is_not_kept(cache, pool) -> None:
    read = HeldCall("before")
    before = pool.submit(get, cache, read)
    read.wait_until_started()
    cache.clear()
    assert get(cache, lambda: "after") == "after"
    read.end()
    assert before.result(TIMEOUT) == "before"
    assert get(cache) == "after"


def test_number_of_entries_is_bounded(cache) -> None:
    for key in "abc":
        get(cache, lambda: "old", key=key)
    assert get(cache, key="c") == "old"
    assert get(cache, lambda: "new", key="a") == "new"
