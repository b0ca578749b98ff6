"""Processes in the foreground of a terminal: their output, restarts and end.

`make demo` and `make stack` use it.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from devservers.process import with_parent_death_signal

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 8.0
MAX_RESTARTS = 5
"""Restarts of one process within RESTART_WINDOW seconds; when it ends again, everything stops."""
RESTART_WINDOW = 60.0
RESTART_DELAY = 1.0
"""Seconds before the first restart in the window; before the second it is twice as long, and so on:
a full disk or an unavailable store may last for some seconds."""
COLOURS = {"web": 36, "worker": 33, "consumer": 32, "beat": 35}


def say(text: str) -> None:
    with suppress(BrokenPipeError):
        print(text, flush=True)


def chosen_port() -> int:
    """Return the port that PORT names, by default 8000; exit with a sentence if it is none."""
    port = os.environ.get("PORT") or "8000"
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        sys.exit(f"\nPORT={port} is not a port: it is a number from 1 to 65535.")
    return int(port)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end everything: a closed terminal is none with nohup."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    return signals[: 2 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 3]


# Children of a process that was killed while starting: the reaper ends them by process group.
REAPER = """
import contextlib, os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.discard if line.startswith("-") else groups.add)(abs(int(line)))
for group in groups:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
"""


@contextmanager
def reaper() -> Iterator[Callable[[int], None]]:
    """Yield a function that registers process groups; all are killed if this process dies.

    A negative number removes a group that has ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-ISc", REAPER], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    lines = process.stdin

    def register(group: int) -> None:
        with suppress(OSError, ValueError):  # the reaper has ended, and so do the groups
            lines.write(f"{group}\n")
            lines.flush()

    try:
        yield register
    finally:
        process.kill()
        process.wait()
        lines.close()


class Part:
    """A process whose lines are printed with its name; it puts itself on a queue when it ends.

    Children that it leaves behind are killed.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        ended: "Events",
        watch_group: Callable[[int], None],
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self._watch_group = watch_group
        self.process = subprocess.Popen(
            with_parent_death_signal(command),
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        watch_group(self.process.pid)
        assert self.process.stdout is not None
        relay = threading.Thread(target=self._relay, args=(self.process.stdout,), daemon=True)
        relay.start()
        threading.Thread(target=self._wait, args=(relay, ended), daemon=True).start()

    def __str__(self) -> str:
        return f"{self.name} ended with exit code {self.process.returncode}"

    def _wait(self, relay: threading.Thread, ended: "Events") -> None:
        self.process.wait()
        self.signal(signal.SIGKILL)  # children that lost their parent; they hold the pipe open
        self._watch_group(-self.process.pid)
        relay.join()
        ended.put(self)

    def _relay(self, lines: IO[str]) -> None:
        label = f"{self.name:<8} |"
        if sys.stdout.isatty():
            colour = COLOURS[self.name.partition("-")[0]]
            label = f"\x1b[{colour}m{label}\x1b[0m"
        with lines:
            for line in lines:
                say(f"{label} {line.rstrip()}")

    def signal(self, how: signal.Signals) -> None:
        """Signal the whole session, including children that lost their parent."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)


Events = queue.SimpleQueue[str | Part]
"""Names of signals, and parts that have ended."""


def supervise(parts: Mapping[str, Part], ended: Events, start: Callable[[str], None]) -> str:
    """Restart the parts that end; return a signal's name, or which part ended too often."""
    ends: dict[str, list[float]] = defaultdict(list)
    due: dict[str, float] = {}
    while True:
        for name in [name for name, at in due.items() if at <= time.monotonic()]:
            del due[name]
            start(name)
        try:
            wait = min(due.values()) - time.monotonic() if due else None
            event = ended.get(timeout=None if wait is None else max(0.0, wait))
        except queue.Empty:
            continue
        if isinstance(event, str):
            return event
        if parts[event.name] is not event:
            continue  # replaced on purpose
        now = time.monotonic()
        recent = [at for at in ends[event.name] if at > now - RESTART_WINDOW]
        ends[event.name] = [*recent, now]
        if len(recent) == MAX_RESTARTS:
            return f"{event}, after {MAX_RESTARTS} restarts within {RESTART_WINDOW:g} s"
        delay = RESTART_DELAY * (len(recent) + 1)
        due[event.name] = now + delay
        say(f"{event}: it restarts in {delay:g} s.")


def stop_parts(parts: list[Part], ended: Events) -> None:
    """Send SIGTERM, wait, then SIGKILL; a second Ctrl-C ends the wait."""
    for part in parts:
        with suppress(ProcessLookupError):
            part.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    running = list(parts)
    while running and time.monotonic() < deadline:
        with suppress(queue.Empty):
            if isinstance(ended.get(timeout=0.1), str):
                break
        running = [part for part in running if part.process.poll() is None]
    for part in parts:
        part.signal(signal.SIGKILL)
        part.process.wait()
