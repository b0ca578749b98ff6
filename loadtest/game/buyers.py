"""A buyer of the game: a forked process that stops before chosen lines of the shop's code."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings

from devservers.faults.waiting import until
from devservers.process import die_with_parent, process_state
from loadtest.load.shop_worker import ShopCommands

# fork: a buyer starts with Django loaded.
_fork = multiprocessing.get_context("fork")
Stops = Mapping[str, tuple[str, int]]
"""The path and the number of each line, by the name of the stop."""


class Buyer:
    """The host's side. The process belongs to the host and ends with it."""

    def __init__(self, name: str, stops: Stops, options: dict[str, Any], purchase: Any) -> None:
        self.name = name
        self.at = ""
        """The stop before which it waits for `step`; empty while it runs."""
        self.is_paused = self.is_killed = False
        self.reply: dict[str, Any] | None = None
        """The result of its purchase."""
        self._line, theirs = _fork.Pipe()
        self._process = _fork.Process(
            target=_buy, args=(theirs, stops, options, purchase), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def is_over(self) -> bool:
        """Return True once it has bought, was refused, or was killed."""
        return self.is_killed or self.reply is not None

    @property
    def is_running(self) -> bool:
        """Return True between two stops: it works, or waits for the lock."""
        return not (self.is_over or self.is_paused or self.at)

    def listen(self, seconds: float) -> None:
        """Wait up to `seconds` for its next stop or its end."""
        if self.is_running and self._line.poll(seconds):
            try:
                message = self._line.recv()
            except EOFError:
                message = {"error": "failed"}  # the traceback is in the host's log
            if isinstance(message, str):
                self.at = message
            else:
                self.reply = message

    def step(self) -> None:
        """Let it run until its next stop; a paused one wakes first."""
        if self.is_paused:
            os.kill(self._pid, signal.SIGCONT)
        self.at, self.is_paused = "", False
        self._line.send("on")

    def pause(self) -> None:
        """Stop all its threads, also the watchdog."""
        os.kill(self._pid, signal.SIGSTOP)
        until(lambda: process_state(self._pid) == "T", "a stopped process")
        self.is_paused = True

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.join()
        self._line.close()
        self.at, self.is_killed = "", True

    @property
    def _pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid


def _buy(line: Connection, stops: Stops, options: dict[str, Any], purchase: Any) -> NoReturn:
    """Buy in this process, stopping before the lines of `stops`."""
    die_with_parent()
    commands = ShopCommands()
    commands.open(**options)
    names: dict[tuple[str, int], list[str]] = {}
    for name, (path, number) in stops.items():
        names.setdefault((str(Path(settings.BASE_DIR) / path), number), []).append(name)
    files = {path for path, _number in names}

    def trace_call(frame: FrameType, _event: str, _arg: object) -> Any:
        return trace_line if frame.f_code.co_filename in files else None

    def trace_line(frame: FrameType, event: str, _arg: object) -> Any:
        here = names.get((frame.f_code.co_filename, frame.f_lineno))
        if event == "line" and here:
            # A `with` line runs twice; "lease" is bound once the lock was acquired.
            is_held = "lease" in frame.f_locals
            name = here[-1] if is_held else here[0]
            if not (is_held and name == "acquire"):
                line.send(name)
                line.recv()
        return trace_line

    sys.settrace(trace_call)
    try:
        reply = commands.buy(**purchase)
    finally:
        sys.settrace(None)
    line.send(reply)
    os._exit(0)  # without waiting for the watchdog
