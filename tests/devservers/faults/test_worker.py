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
    worker.send("divide", a=6, b=3)
    worker.send("divide", a=6, b=2)
    assert [worker.receive(), worker.receive()] == [{"result": 2}, {"result": 3}]
    assert worker.is_silent(0.05)


def test_listed_error_is_a_reply_and_the_worker_continues(worker: WorkerProcess) -> None:
    reply = worker.call("divide", a=1, b=0)
    assert (reply["ok"], reply["error"]) == (False, "ZeroDivisionError")
    assert worker.call("divide", a=1, b=1) == {"result": 1}


def test_command_without_reply_may_send_lines_later(worker: WorkerProcess) -> None:
    assert worker.call("announce") == {"announced": True}


def test_end_of_the_process_is_reported(worker: WorkerProcess) -> None:
    with pytest.raises(FaultFailed, match="has ended with exit code 3"):
        worker.call("leave")


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
