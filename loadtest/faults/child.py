"""A process that obeys: told a line of JSON, it does that and says what came of it in another."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

from devservers.process import process_state, with_parent_death_signal
from loadtest.faults.waiting import FaultFailed, until

ANSWER_SECONDS = 60.0


class Child:
    """The parent's side of `python -m MODULE`, which is killed with it."""

    def __init__(self, module: str, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            with_parent_death_signal([sys.executable, "-m", module]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    @property
    def is_alive(self) -> bool:
        """Whether it can be used again."""
        return self._process.poll() is None

    def send(self, command: Mapping[str, Any]) -> None:
        """Give a command without waiting for its answer."""
        self.write(json.dumps(command))

    def write(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing is heard for so long: it waits for something."""
        assert self._process.stdout is not None
        return not select.select([self._process.stdout], [], [], seconds)[0]

    def answer(self) -> dict[str, Any]:
        """The next that it says; FaultFailed when that is nothing."""
        assert self._process.stdout is not None
        if self.is_silent(ANSWER_SECONDS):
            raise FaultFailed(f"process {self.pid} says nothing")
        line = self._process.stdout.readline()
        if not line:
            raise FaultFailed(f"process {self.pid} has died")
        said: dict[str, Any] = json.loads(line)
        return said

    def pause(self) -> None:
        """SIGSTOP; none of its threads runs any more."""
        self._process.send_signal(signal.SIGSTOP)
        threads = [int(number) for number in os.listdir(f"/proc/{self.pid}/task")]
        until(
            lambda: all(process_state(number) == "T" for number in threads), "the process stopping"
        )

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, wherever it is."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
