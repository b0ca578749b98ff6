"""Processes that end with their parent, and facts that Linux keeps about a process."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import parent_process
from pathlib import Path


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """Return the command wrapped so that it gets SIGKILL when the calling process ends.

    The wrapper keeps the process id. Linux only: elsewhere the command is returned unchanged. The
    kernel watches the *thread* that starts the process, so that thread must live long enough.
    """
    if not sys.platform.startswith("linux"):
        return list(command)
    # Not preexec_fn, which runs Python between fork and exec and may deadlock among threads.
    code = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9);"
        "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-ISc", code, str(os.getpid()), *command]


def die_with_parent() -> None:
    """Make a `multiprocessing` child end with its parent, and restore the default of SIGTERM."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if (parent := parent_process()) and os.getppid() != parent.pid:
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def process_state(pid: int) -> str:
    """Return the state letter of a process as `ps` prints it; empty if it ended."""
    try:
        return process_stat(pid)[0]
    except OSError:
        return ""


def is_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs: they stop one by one after SIGSTOP."""
    threads = os.listdir(f"/proc/{pid}/task") if process_state(pid) else []
    return bool(threads) and all(process_state(int(thread)) == "T" for thread in threads)


def process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; raise OSError if it ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
