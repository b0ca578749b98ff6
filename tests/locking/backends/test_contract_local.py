"""The contract, run by the backends that need no server."""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from locking.backends import clock_tokens
from locking.backends.process import ProcessBackend
from locking.lease import Lease, LockStore, StoreLock
from locking.testing.calls import WAIT_TIMEOUT, acquire_and_release, passes_in_child, until
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


@pytest.mark.parametrize(
    ("step", "is_held"),
    [
        ("_join", False),
        ("_join", True),
        ("_withdraw", True),
        ("hold", False),
        ("_end", False),
    ],
    ids=["grant", "start of the wait", "grant after a wait", "lease", "release"],
)
def test_interrupt_at_the_moment_of_a_grant_wait_or_release_leaves_no_trace(
    process: LockStore, step: str, is_held: bool
) -> None:
    """A signal handler raises; without a lease that ends, the lock would stay held for ever."""
    owner: Any = {"hold": StoreLock, "_end": Lease}.get(step, ProcessBackend)
    code = getattr(owner, step).__code__

    def interrupt(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is code and event == "return":
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    def hold() -> None:
        with process.lock("a"):
            holding.set()
            if step == "_withdraw":
                until(lambda: process.inspect()[0].waiters == 1, "the wait")
            else:
                interrupted.wait(WAIT_TIMEOUT)

    holding, interrupted, before = threading.Event(), threading.Event(), sys.gettrace()
    with ThreadPoolExecutor(1) as pool:
        if is_held:
            holder = pool.submit(hold)
            assert holding.wait(WAIT_TIMEOUT)
        try:
            sys.settrace(interrupt)
            with pytest.raises(KeyboardInterrupt):
                acquire_and_release(process, "a")
        finally:
            sys.settrace(before)
            interrupted.set()
        if is_held:
            holder.result(WAIT_TIMEOUT)
    assert not process.inspect()
    assert not process.held, "it would be entered again, beside the next holder"
