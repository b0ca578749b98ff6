"""A buyer of the game: a forked process that stops before chosen lines of the shop's code."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings

from devservers.faults.waiting import until
from devservers.process import die_with_parent, is_stopped
from loadtest.charts.source import Excerpt
from loadtest.load.shop_worker import ShopCommands

# fork: a buyer starts with Django loaded.
_fork = multiprocessing.get_context("fork")
Stops = Mapping[str, Excerpt]
Fields = dict[str, Any]


class Buyer:
    """The recorder's side. The process belongs to the recorder and ends with it."""

    def __init__(self, name: str, stops: Stops, options: Fields, purchase: Fields) -> None:
        self.name = name
        self.status, self.at = "runs", ""
        """It "runs", also while it waits for the lock, until it is "stopped" `at` a stop, "paused"
        there, or at its end: "killed", "bought", or refused with the code of an error."""
        self._line, theirs = _fork.Pipe()
        given = (theirs, stops, options, purchase)
        self._process = _fork.Process(target=_buy, args=given, daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def listen(self, seconds: float) -> None:
        """Wait up to `seconds` for its next stop or its end."""
        if self.status == "runs" and self._line.poll(seconds):
            try:
                self.status, self.at = self._line.recv()
            except EOFError:
                self.status = "failed"  # the traceback is in the recorder's log

    def step(self) -> None:
        """Let it run until its next stop; a paused one wakes first."""
        if self.status == "paused":
            os.kill(self.pid, signal.SIGCONT)
        self.status, self.at = "runs", ""
        self._line.send("on")

    def pause(self) -> None:
        """Stop all its threads, also the watchdog."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: is_stopped(self.pid), "a stopped process")
        self.status = "paused"

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.join()
        self._line.close()
        self.status, self.at = "killed", ""


def _buy(line: Connection, stops: Stops, options: Fields, purchase: Fields) -> None:
    """Buy in this process, stopping before the first lines of `stops`."""
    die_with_parent()
    commands = ShopCommands()
    commands.open(**options)
    names: dict[tuple[str, int], list[str]] = {}
    for name, code in stops.items():
        path = str(Path(settings.BASE_DIR) / code.path)
        names.setdefault((path, code.number), []).append(name)
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
                line.send(("stopped", name))
                line.recv()
        return trace_line

    sys.settrace(trace_call)
    reply: Any = commands.buy(**purchase)
    sys.settrace(None)
    line.send((reply.get("error", "bought"), ""))
    os._exit(0)  # without waiting for the watchdog
