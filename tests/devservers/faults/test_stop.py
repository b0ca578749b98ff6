"""A process that stops itself stops at that point, even if its main thread has no time to run."""

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from devservers import HOST, PostgreSql
from devservers.faults.waiting import until
from devservers.postgresql import HELLO
from devservers.process import is_stopped, process_state

STOPS = """
import os, signal, sys, threading
from devservers.faults.injectors import inject_into_self

ready = threading.Event()

def stop():
    ready.wait()
    if sys.argv[1] == "process":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        inject_into_self("stop")
    while True:
        os.write(1, b"went on ")  # up to what the pipe holds

thread = threading.Thread(target=stop)
thread.start()
os.sched_setaffinity(0, {int(sys.argv[2])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
ready.set()
thread.join()
"""
TRIES = 20


def goes_on(way: str, cpu: str) -> bytes:
    """What a thread still does after it has stopped its process."""
    command = [sys.executable, "-c", STOPS, way, cpu]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        until(lambda: process_state(process.pid) == "T", "the stop", 60)
        process.kill()
        return process.communicate()[0]


@pytest.mark.long
def test_thread_does_not_go_on_after_it_has_stopped_its_process() -> None:
    """The control sends the signal to the process: its thread goes on."""
    cpu = str(min(os.sched_getaffinity(0)))
    loop = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop]) as busy:
        try:
            assert any(goes_on("process", cpu) for _ in range(TRIES))
            assert [goes_on("thread", cpu) for _ in range(3)] == [b""] * 3
        finally:
            busy.kill()


class Busy(PostgreSql):
    """Its next session starts just after the sessions were listed."""

    is_due = False
    late: socket.socket | None = None

    def children(self) -> list[int]:
        found = super().children()
        if self.is_due:
            self.is_due = False
            self.late = socket.create_connection((HOST, self.port), timeout=1)
            with suppress(TimeoutError):
                self.late.sendall(HELLO)
                self.late.recv(100)
        return found


def test_session_that_starts_during_a_pause_stops_too() -> None:
    with Busy() as server:
        server.is_due = True
        server.pause()
        assert not server.is_due
        assert all(map(is_stopped, server.working()))
        server.resume()
        assert server.late is not None
        server.late.close()
