"""Calls that the threads of one process share."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from locking.refresh import SharedCalls
from locking.testing.calls import passes_in_child
from tests.locking.held_call import TIMEOUT, HeldCall


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_waiting_thread_takes_over_an_interrupted_call(pool) -> None:
    calls, interrupted = SharedCalls[str, str](), HeldCall(SystemExit())
    first = pool.submit(calls.call, "a", interrupted)
    interrupted.wait_until_started()
    second = pool.submit(calls.call, "a", lambda: "second")
    interrupted.end()
    assert isinstance(first.exception(TIMEOUT), SystemExit)
    assert second.result(TIMEOUT) == "second"
    assert "a" not in calls


def test_child_makes_its_own_call_during_a_call_of_its_parent(pool) -> None:
    calls, held = SharedCalls[str, str](), HeldCall("parent")
    pool.submit(calls.call, "a", held)
    held.wait_until_started()
    assert passes_in_child(lambda: calls.call("a", lambda: "child") == "child")
    held.end()
