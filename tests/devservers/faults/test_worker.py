"""The worker process of the lab and the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devservers.base import injected_faults
from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import WorkerProcess
from devservers.process import process_state


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("tests.devservers.faults.commands:Commands") as process:
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
    path = "tests.devservers.faults.commands:Commands"
    with WorkerProcess(path, log=tmp_path / "log") as worker:
        with pytest.raises(FaultFailed, match=r"exit code 1: .*ZeroDivisionError"):
            worker.call("crash")
        with pytest.raises(FaultFailed, match="exit code 1"):
            worker.send("crash")


def test_pause_and_kill_are_counted_as_faults(worker: WorkerProcess) -> None:
    worker.call("divide", a=1, b=1)
    injected_faults.clear()
    worker.pause()
    worker.send("divide", a=4, b=2)
    assert worker.is_silent(0.1)
    worker.resume()
    assert worker.receive() == {"result": 2}
    worker.kill()
    assert not worker.is_alive
    assert process_state(worker.pid) == ""
    assert injected_faults == {"WorkerProcess stopped": 1, "WorkerProcess killed": 1}
