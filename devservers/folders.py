"""Temporary folders that soon follow their owner, however it ends.

Standard library only, like processes.py.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"seckill-.+-(\d+\.(\d+)\.\d+)-\w+")


def new_folder(kind: str) -> Path:
    """A new folder, to be removed by its maker.

    Whose maker died before that, goes now: the name says who it was, so that there is no moment
    in which a folder has no owner yet. On Linux; elsewhere they stay.
    """
    remove_orphans()
    return Path(tempfile.mkdtemp(prefix=f"seckill-{kind}-{identity(os.getpid())}-"))


def remove_orphans() -> None:
    """Remove the folders whose owner has ended; one in another container counts as alive."""
    here = identity(os.getpid()).partition(".")[0]
    for folder in Path(tempfile.gettempdir()).glob(f"seckill-*-{here}.*"):
        if (named := _NAME.fullmatch(folder.name)) and identity(int(named[2])) != named[1]:
            shutil.rmtree(folder, ignore_errors=True)


def identity(pid: int) -> str:
    """Namespace, pid and start of a process, which no other one ever has; "gone" without one."""
    try:
        started = stat_of(pid)[19]
        return f"{os.stat('/proc/self/ns/pid').st_ino}.{pid}.{started}"
    except OSError:
        return "gone"


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, which is the state; OSError without one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
