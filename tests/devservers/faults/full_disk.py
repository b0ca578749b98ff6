"""A disk that is full for a private server until space is freed.

    disk = FullDisk(server)
    # start it with the environment `disk.env`
    disk.fill()

Linux, and programs that write with the C library's pwrite, pwritev or posix_fallocate.
"""

import subprocess
from pathlib import Path

from devservers import Server
from devservers.base import injected_faults
from devservers.programs import required

_SHIM = Path(__file__).with_name("fulldisk.c")


class FullDisk:
    """The disk of one server's data directory."""

    def __init__(self, server: Server) -> None:
        shim, self._flag = server.folder / "fulldisk.so", server.folder / "disk-is-full"
        command = [required("cc"), "-shared", "-fPIC", "-O2", "-o", shim, _SHIM, "-ldl"]
        subprocess.run(command, check=True)
        self.env = {
            "LD_PRELOAD": str(shim),
            "FULL_DISK_FLAG": str(self._flag),
            "FULL_DISK_FOLDER": f"{server.data}/base/",
        }

    def fill(self) -> None:
        """Refuse to make files larger from now on."""
        self._flag.touch()
        injected_faults["disk full"] += 1

    def free(self) -> None:
        """Accept it again."""
        self._flag.unlink(missing_ok=True)
