"""A disk that is full for a private server until space is freed.

    disk = FullDisk(server)     # before it starts
    server.start()
    disk.fill()

Linux, and programs that write with the C library's write, pwrite, pwritev or posix_fallocate.
"""

import subprocess
from pathlib import Path

from devservers import Server
from devservers.base import injected_faults
from devservers.programs import required

_SHIM = Path(__file__).with_name("fulldisk.c")


class FullDisk:
    """The disk of a server's data, or of a directory in that."""

    def __init__(self, server: Server, directory: str = "") -> None:
        shim, self._flag = server.folder / "fulldisk.so", server.folder / "disk-is-full"
        options: list[str | Path] = ["-shared", "-fPIC", "-O2", "-o", shim, _SHIM, "-ldl"]
        subprocess.run([required("cc"), *options], check=True)
        folder = f"{server.data / directory}/"
        env = {"FULL_DISK_FLAG": str(self._flag), "FULL_DISK_FOLDER": folder}
        server.preload({"LD_PRELOAD": str(shim), **env})

    def fill(self) -> None:
        """Refuse to make files larger from now on."""
        self._flag.touch()
        injected_faults["disk full"] += 1

    def free(self) -> None:
        """Accept it again."""
        self._flag.unlink(missing_ok=True)
