"""The parent's side of `tests.shop.races.worker`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 30.0
TTL = 1.5
"""Seconds that a lock of such a process lives unrenewed."""


class Process:
    """One process of the shop."""

    def __init__(self, database_url: str, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.shop.races.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            env={**os.environ, "DATABASE_URL": database_url, "RACE_TTL": str(TTL), **env},
        )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._greeted = False
        self.is_done = True
        """Whether the results of all calls have been heard."""

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put({"dead": True})

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self, word: str, patience: float = PATIENCE) -> Any:
        said = self._said.get(timeout=patience)
        assert word in said, f"expected {word!r}, heard {said}"
        return said[word]

    def prepare(
        self,
        *calls: dict[str, Any],
        pause_at: str | None = None,
        times: int = 1,
        without: Sequence[str] = (),
    ) -> None:
        """Bring calls to the start line; `without` names functions that do nothing there."""
        if not self._greeted:
            self._hear("hello")
            self._greeted = True
        self.is_done = False
        self._tell(
            json.dumps(
                {"run": calls, "pause_at": pause_at, "times": times, "without": list(without)}
            )
        )
        self._hear("ready")

    def go(self) -> None:
        """Start."""
        self._tell("go")

    def start(self, *calls: dict[str, Any], **options: Any) -> None:
        """Prepare and go."""
        self.prepare(*calls, **options)
        self.go()

    def reached(self) -> None:
        """Wait until a call has come to the fail point."""
        self._hear("reached")

    def on(self) -> None:
        """Let all that wait at the fail point go on."""
        self._tell("on")

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing is heard for so long: it waits for something."""
        try:
            said = self._said.get(timeout=seconds)
        except queue.Empty:
            return True
        raise AssertionError(f"expected silence, heard {said}")

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end of all calls."""
        results: list[dict[str, Any]] = self._hear("done")
        self.is_done = True
        return results

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        self._process.send_signal(number)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        if self.is_alive:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def together(*processes: Process) -> None:
    """The start line: all are ready before the first goes."""
    for process in processes:
        process.go()
