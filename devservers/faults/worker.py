"""A worker process that executes commands: one JSON line for each request and each reply.

    with WorkerProcess("package.module:Commands") as worker:
        worker.call("acquire", name="sale:1")       # {"ok": True}
        worker.kill()                               # SIGKILL while it holds the lock

The child creates one `Commands` object; a request names one of its methods and the arguments. The
method returns the reply, or None for no reply; it may `send_to_parent` further lines. An
error that `Commands.ERRORS` lists becomes a reply with its class and message.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self

from devservers.base import injected_faults
from devservers.faults.waiting import FaultFailed, until
from devservers.process import is_stopped, with_parent_death_signal

REPLY_TIMEOUT = 60.0
TERMINATE_TIMEOUT = 20.0
LOG_LINES = 12
_output = threading.Lock()


class WorkerProcess:
    """The parent's side; the kernel kills the child when the parent ends.

    With `log`, a file, the error about a process that has ended quotes the end of its stderr. It
    runs `python -m MODULE COMMANDS` in the directory `cwd`.
    """

    def __init__(
        self,
        commands: str,
        env: Mapping[str, str] | None = None,
        *,
        log: Path | None = None,
        module: str = "devservers.faults",
        cwd: Path | None = None,
    ) -> None:
        self._log = log
        with log.open("wb") if log else contextlib.nullcontext() as errors:
            self._process = subprocess.Popen(
                with_parent_death_signal([sys.executable, "-m", module, commands]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
            )
        self._received = b""
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Return True while the process runs."""
        return self._process.poll() is None

    def send(self, do: str, **fields: Any) -> None:
        """Send a request without waiting for its reply."""
        self.write_line(json.dumps({"do": do, **fields}))

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its reply."""
        self.send(do, **fields)
        return self.receive()

    def write_line(self, line: str) -> None:
        """Send a line that is not a request, such as the end of a fault."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None

    def is_silent(self, seconds: float | None) -> bool:
        """Return True if nothing arrives within `seconds`: the process waits for something."""
        assert self._process.stdout is not None
        return (
            b"\n" not in self._received
            and not (select.select([self._process.stdout], [], [], seconds)[0])
        )

    def receive(self, seconds: float | None = REPLY_TIMEOUT) -> dict[str, Any]:
        """Return the next line of the child; raise FaultFailed if there is none in time."""
        assert self._process.stdout is not None
        deadline = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._received:
            if self.is_silent(deadline and max(0.0, deadline - time.monotonic())):
                raise FaultFailed(f"process {self.pid} does not respond")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._ended()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended(self) -> FaultFailed:
        """Return the error about the end of the process, with its cause."""
        what = f"process {self.pid} has ended with exit code {self._process.wait(REPLY_TIMEOUT)}"
        if self._log is not None:
            tail = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            what += f": {' | '.join(tail) or 'nothing on stderr'}"
        return FaultFailed(what)

    def pause(self) -> None:
        """Inject SIGSTOP, and wait until no thread of the process runs."""
        injected_faults[f"{type(self).__name__} stopped"] += 1
        self._process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(self.pid), "a stopped process")

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Inject a crash: SIGKILL."""
        injected_faults[f"{type(self).__name__} killed"] += 1
        self.close()

    def terminate(self) -> None:
        """Send SIGTERM, and wait until the process has ended."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TERMINATE_TIMEOUT)

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._process.wait(REPLY_TIMEOUT)

    def close(self) -> None:
        """Kill the process, even if it is busy or stopped."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def send_to_parent(line: Mapping[str, Any]) -> None:
    """Write a JSON line to stdout; thread-safe."""
    with _output:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def emit(event: str, **fields: Any) -> None:
    """Send an event to the parent."""
    send_to_parent({"event": event, **fields})


def main(path: str) -> None:
    """Execute requests until the parent closes the pipe."""
    import django

    django.setup()
    commands = resolve_name(path)()
    errors: tuple[type[Exception], ...] = getattr(commands, "ERRORS", ())
    # Not `for line in sys.stdin`, which reads ahead: a fault may read the next line itself.
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        try:
            reply = getattr(commands, request.pop("do"))(**request)
        except errors as error:
            reply = {"ok": False, "error": type(error).__name__, "message": str(error)}
        if reply is not None:
            send_to_parent(reply)
    os._exit(0)  # without waiting for threads that still execute a command
