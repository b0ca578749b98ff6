"""The demo's processes in the foreground of a terminal: their output, restarts and end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from devservers import HOST
from devservers.process import with_parent_death_signal

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 8.0


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


def exit_on_signals(code: int | None = None) -> None:
    """Let a signal end this process as an error does, with this exit code or the signal's own."""
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # With nohup, a closed terminal is no reason.
        if how != signal.SIGHUP or signal.getsignal(how) != signal.SIG_IGN:
            signal.signal(how, lambda number, _: sys.exit(128 + number if code is None else code))


class Part:
    """A process whose lines are printed with its name."""

    def __init__(self, name: str, *command: str) -> None:
        self.name, self._command = name, command
        self._start()

    def __str__(self) -> str:
        return f"{self.name} ended with exit code {self.process.returncode}"

    def _start(self) -> None:
        self.process = subprocess.Popen(
            with_parent_death_signal(self._command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._relay, args=(self.process.stdout,), daemon=True).start()

    def _relay(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                say(f"{self.name:<8} | {line.rstrip()}")

    def restart_if_ended(self) -> None:
        if self.process.poll() is not None:
            self.kill()
            say(f"{self}: it starts again.")
            self._start()

    def kill(self) -> None:
        """Kill the whole session, including children that lost their parent."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def stop(parts: Sequence[Part]) -> None:
    """Send SIGTERM, wait, then SIGKILL; a second Ctrl-C ends the wait."""
    deadline = time.monotonic() + STOP_SECONDS
    try:
        for part in parts:
            part.process.terminate()
        for part in parts:
            with suppress(subprocess.TimeoutExpired):
                part.process.wait(max(0, deadline - time.monotonic()))
    finally:
        for part in parts:
            part.kill()
