"""Waiting for a condition with a time limit."""

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_TIMEOUT = 20.0
Value = TypeVar("Value")


class FaultFailed(RuntimeError):
    """A fault was not injected: a condition that it needs did not become true."""


def until(
    condition: Callable[[], Value], what: str = "the condition", seconds: float = WAIT_TIMEOUT
) -> Value:
    """Poll `condition` and return its first true value; raise FaultFailed after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise FaultFailed(f"{what} did not come true in {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.02)  # a poll may be a query, or a scan of all processes
    return value
