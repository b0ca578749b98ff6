"""A wall clock of its own for a private server, or for any process, that can be set.

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
from devservers.programs import required

_SHIM = Path(__file__).with_name("clockshim.c")


class Clock:
    """One wall clock, right until it is shifted; `folder` is where its two files go."""

    def __init__(self, folder: Path) -> None:
        compiler = required("cc")
        self._offset = folder / "clock-offset"
        self.shift(0)
        shim = folder / "clockshim.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", shim, _SHIM], check=True)
        self.env = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET_FILE": str(self._offset)}

    def shift(self, seconds: float) -> None:
        """Be this far off from now on, forward or back."""
        # In place, for it is mapped; a write of eight bytes is seen whole.
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))

    def drive(self, server: Server) -> None:
        """Let a server that has not started yet live by this clock."""
        plain = server.command
        words = ["env", *(f"{name}={value}" for name, value in self.env.items())]
        server.command = lambda: [*words, *plain()]  # type: ignore[method-assign]
