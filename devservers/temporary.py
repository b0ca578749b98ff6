"""Temporary directories that are removed soon after their owner ends, however it ends."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from .process import process_state

_NAMESPACE = Path("/proc/self/ns/pid")


def temporary_directory(kind: str) -> Path:
    """Create a directory that its owner, the calling process, has to remove.

    Directories of owners that ended without removing them are deleted now. The name identifies the
    owner, so that a directory never exists without one; owners in other containers count as alive.
    Linux only: elsewhere they stay.
    """
    here = _NAMESPACE.stat().st_ino if _NAMESPACE.exists() else None
    for directory in Path(tempfile.gettempdir()).glob(f"seckill-*-{here}.*") if here else ():
        named = re.fullmatch(rf"seckill-.+-{here}\.(\d+)-\w+", directory.name)
        if named and not process_state(int(named[1])):
            shutil.rmtree(directory, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"seckill-{kind}-{here}.{os.getpid()}-"))
