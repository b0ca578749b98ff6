"""The parent's side of `tests.shop.races.worker`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver
from typing import Any
from unittest.mock import patch

from devservers.base import injected_faults

PATIENCE = 30.0
TTL = 1.5
"""Seconds that a lock of such a process lives unrenewed."""

_server = multiprocessing.get_context("forkserver")


def start_server(database_url: str) -> None:
    """Let one process import the shop, from which all others are forked."""
    _server.set_forkserver_preload(["tests.shop.races.worker"])
    with patch.dict(os.environ, DATABASE_URL=database_url):
        forkserver.ensure_running()


class Process:
    """One process of the shop."""

    def __init__(self, redis_url: str | None = None) -> None:
        self._pipe, childs = _server.Pipe()
        self._process = _server.Process(
            target=_obey, args=(childs, TTL, redis_url or os.environ["REDIS_URL"]), daemon=True
        )
        self._process.start()
        childs.close()  # so that its death is heard
        self.is_done = True
        """Whether the results of all calls have been heard."""

    def _hear(self, word: str) -> Any:
        assert self._pipe.poll(PATIENCE), f"heard nothing while waiting for {word!r}"
        said = self._pipe.recv()
        assert word in said, f"expected {word!r}, heard {said}"
        return said[word]

    def prepare(
        self,
        *calls: dict[str, Any],
        pause_at: str | None = None,
        times: int = 1,
        without: Sequence[str] = (),
    ) -> None:
        """Bring calls to the start line; `without` names functions that write nothing there."""
        self.is_done = False
        self._pipe.send({"run": calls, "pause_at": pause_at, "times": times, "without": without})
        self._hear("ready")

    def go(self) -> None:
        """Start."""
        self._pipe.send("go")

    def start(self, *calls: dict[str, Any], **options: Any) -> None:
        """Prepare and go."""
        self.prepare(*calls, **options)
        self.go()

    def reached(self) -> None:
        """Wait until a call has come to the fail point."""
        self._hear("reached")
        injected_faults["process held at a fail point"] += 1

    def on(self) -> None:
        """Let all that wait at the fail point go on."""
        self._pipe.send("on")

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing is heard for so long: it waits for something."""
        return not self._pipe.poll(seconds)

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end of all calls."""
        results: list[dict[str, Any]] = self._hear("done")
        self.is_done = True
        return results

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        injected_faults["process killed"] += 1
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def close(self) -> None:
        """End it."""
        self._end()
        self._pipe.close()


def _obey(*args: Any) -> None:
    from tests.shop.races.worker import obey  # has been imported by the fork server

    obey(*args)


def together(*processes: Process) -> None:
    """The start line: all are ready before the first goes."""
    for process in processes:
        process.go()
