"""A function whose calls last until the test ends them."""

import threading
from typing import Any

TIMEOUT = 30.0


class HeldCall:
    """Returns `value`, or raises it if it is an exception, after `end`."""

    def __init__(self, value: object = None) -> None:
        self.value = value
        self.count = 0
        self._started, self._ended = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.count += 1
        self._started.set()
        assert self._ended.wait(TIMEOUT)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def wait_until_started(self) -> None:
        assert self._started.wait(TIMEOUT)

    def end(self) -> None:
        self._ended.set()


def unexpected() -> Any:
    raise AssertionError("No call was expected.")
