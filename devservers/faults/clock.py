"""A wall clock that can be set, for a private server or any other process.

    clock = Clock(tmp_path)
    clock.drive(redis)          # before it starts
    redis.start()
    clock.shift(31)             # half a minute into the future, at once

`clock.env` does the same for a process started by other means. Linux, and programs that ask the C
library for the time: redis-server, mariadbd, java and python do.
"""

import struct
import subprocess
from pathlib import Path

from devservers import Server
from devservers.base import injected_faults
from devservers.programs import installed, required

_SHIM = Path(__file__).with_name("clockshim.c")


class Clock:
    """One wall clock, right until it is shifted; `folder` gets its two files.

    Without a C compiler, a shift raises ServerMissing.
    """

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "clock-offset"
        self._write_offset(0)
        self.env: dict[str, str] = {}
        if compiler := installed("cc"):
            shim = folder / "clockshim.so"
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", shim, _SHIM], check=True)
            self.env = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(self._offset)}

    def shift(self, seconds: float) -> None:
        """Set the offset to the real time, in seconds; it may be negative."""
        if seconds:
            required("cc")
            injected_faults["Clock shifted"] += 1
        self._write_offset(seconds)

    def _write_offset(self, seconds: float) -> None:
        # In place, because the file is mapped; a write of eight bytes is atomic for its readers.
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))

    def drive(self, server: Server) -> None:
        """Make this the clock of a server that has not started yet."""
        server.preload(self.env)
