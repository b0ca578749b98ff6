"""The demo's processes in the foreground of a terminal: their output, restarts and end."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from devservers import HOST
from devservers.process import with_parent_death_signal

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 8.0
RESTART_DELAY = 2.0
"""Seconds before a process that has ended starts again."""


def say(text: str) -> None:
    with suppress(BrokenPipeError):
        print(text, flush=True)


def chosen_port() -> int:
    """Return the port that PORT names, by default 8000; exit with a sentence if it is none."""
    port = os.environ.get("PORT") or "8000"
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        sys.exit(f"\nPORT={port} is not a port: it is a number from 1 to 65535.")
    return int(port)


def check_port(port: int) -> None:
    """Exit with a sentence if nothing can listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            other = port + 1 if port < 65535 else port - 1
            sys.exit(
                f"\nPort {port} cannot be used ({error.strerror}): "
                f"choose another, as in make demo PORT={other}"
            )


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end everything: a closed terminal is none with nohup."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    return signals[: 2 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 3]


def exit_on_signals() -> None:
    """Let a signal end this process as an error does."""
    for how in stop_signals():
        signal.signal(how, lambda number, _: sys.exit(128 + number))


class Part:
    """A process whose lines are printed with its name, and which tells its family when it ends.

    Children that it leaves behind are killed.
    """

    def __init__(self, name: str, family: "Family") -> None:
        self.name, self._family = name, family
        command, env = family.commands[name]
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
        assert self.process.stdout is not None
        relay = threading.Thread(target=self._relay, args=(self.process.stdout,), daemon=True)
        relay.start()
        threading.Thread(target=self._wait, args=(relay,), daemon=True).start()

    def __str__(self) -> str:
        return f"{self.name} ended with exit code {self.process.returncode}"

    def _wait(self, relay: threading.Thread) -> None:
        self.process.wait()
        self.signal(signal.SIGKILL)  # children that lost their parent; they hold the pipe open
        relay.join()
        self._family.ended.put(self)

    def _relay(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                say(f"{self.name:<8} | {line.rstrip()}")

    def signal(self, how: signal.Signals) -> None:
        """Signal the whole session, including children that lost their parent."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)


class Family(ExitStack):
    """Processes by name, and what they need; all of it has ended when the block ends."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        """The command and the environment of each part."""
        self.parts: dict[str, Part] = {}
        self.ended = queue.SimpleQueue[str | Part]()
        """Names of signals, and parts that have ended."""

    def start(self, name: str) -> None:
        """Start a part; the first one makes the end of the block stop all."""
        if not self.parts:
            self.callback(self._stop)
        self.parts[name] = Part(name, self)

    def stop_on_signals(self) -> None:
        """Let a signal end `supervise` from now on."""
        for how in stop_signals():
            signal.signal(how, lambda number, _: self.ended.put(signal.Signals(number).name))

    def supervise(self) -> str:
        """Restart the parts that end, until a signal arrives; return its name."""
        while True:
            event = self.ended.get()
            if isinstance(event, str):
                return event
            say(f"{event}: it restarts in {RESTART_DELAY:g} s.")
            time.sleep(RESTART_DELAY)
            self.start(event.name)

    def _stop(self) -> None:
        """Send SIGTERM, wait, then SIGKILL; a second Ctrl-C ends the wait."""
        running = list(self.parts.values())
        for part in running:
            with suppress(ProcessLookupError):
                part.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while running and time.monotonic() < deadline:
            with suppress(queue.Empty):
                if isinstance(self.ended.get(timeout=0.1), str):
                    break
            running = [part for part in running if part.process.poll() is None]
        for part in self.parts.values():
            part.signal(signal.SIGKILL)
            part.process.wait()
