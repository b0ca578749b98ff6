"""The worker process of the lab and the tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import WorkerProcess, send_to_parent

COMMANDS = f"{__name__}:Commands"


class Commands:
    """The child's side."""

    ERRORS = (ZeroDivisionError,)

    def divide(self, a: int, b: int) -> dict[str, Any]:
        return {"result": a // b}

    def announce(self) -> None:
        """Send a line from a thread instead of a reply."""
        threading.Thread(target=send_to_parent, args=[{"announced": True}]).start()

    def crash(self) -> None:
        os.write(2, b"ZeroDivisionError: of no use\n")
        os._exit(1)


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(COMMANDS) as process:
        yield process


def test_replies_arrive_in_the_order_of_the_requests(worker: WorkerProcess) -> None:
    """A listed error is a reply; a command without one may send a line later."""
    for b in (3, 0, 2):
        worker.send("divide", a=6, b=b)
    first, error, last = (worker.receive() for _ in range(3))
    assert [first, last] == [{"result": 2}, {"result": 3}]
    assert (error["ok"], error["error"]) == (False, "ZeroDivisionError")
    assert worker.is_silent(0.05)
    assert worker.call("announce") == {"announced": True}


def test_error_about_an_end_quotes_the_exit_code_and_stderr(tmp_path: Path) -> None:
    with WorkerProcess(COMMANDS, log=tmp_path / "log") as worker:
        with pytest.raises(FaultFailed, match=r"exit code 1: .*ZeroDivisionError"):
            worker.call("crash")
        with pytest.raises(FaultFailed, match="exit code 1"):
            worker.send("crash")
