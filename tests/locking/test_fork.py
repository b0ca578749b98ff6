"""The registry of callbacks that run in a forked child."""

import gc

import pytest

from locking import fork
from locking.testing.calls import passes_in_child


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_callbacks", {})


class Client:
    def __init__(self, resets: list[object]) -> None:
        self.resets = resets
        fork.after_fork_in_child(self.reset)

    def reset(self) -> None:
        self.resets.append(self)


def test_callbacks_run_in_order_in_the_child_and_one_that_fails_stops_no_other() -> None:
    called: list[object] = []
    fork.after_fork_in_child(lambda: called.append("first"))
    second = Client(called)
    fork.after_fork_in_child(lambda: called.append(1 / 0))
    fork.after_fork_in_child(lambda: called.append("last"))
    assert passes_in_child(lambda: called == ["first", second, "last"])
    assert called == []


def test_method_is_dropped_with_its_object() -> None:
    called: list[object] = []
    client = Client(called)
    kept = Client(called)
    del client
    gc.collect()
    assert passes_in_child(lambda: called == [kept])
    fork.after_fork_in_child(print)
    assert len(fork._callbacks) == 2, "the callback of the collected object is still registered"
