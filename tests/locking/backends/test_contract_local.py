"""The contract, run by the backends that need no server."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from locking.backends import clock_tokens
from locking.testing.calls import WAIT_TIMEOUT, passes_in_child
from tests.locking.backends.contract import Contract


class TestNone(Contract):
    path = "locking.backends.none.NoneBackend"


class TestProcess(Contract):
    path = "locking.backends.process.ProcessBackend"


class TestInMemory(Contract):
    path = "locking.testing.memory.InMemoryBackend"


def test_child_forked_while_a_token_is_made_can_make_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that has the lock of the parent is not in the child."""
    in_lock, go = threading.Event(), threading.Event()

    def stop_once() -> int:
        if not in_lock.is_set():
            in_lock.set()
            go.wait(WAIT_TIMEOUT)
        return 0

    def make() -> int:
        signal.alarm(20)  # ends the child if it hangs
        return clock_tokens.clock_token()

    monkeypatch.setattr(clock_tokens, "time", SimpleNamespace(time_ns=stop_once))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(clock_tokens.clock_token)
        assert in_lock.wait(WAIT_TIMEOUT)
        assert passes_in_child(make)
        go.set()
