"""Temporary directories that are removed soon after their owner ends, however it ends."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from .process import process_identity

_NAME = re.compile(r"seckill-.+-(\d+\.(\d+)\.\d+)-\w+")


def temporary_directory(kind: str) -> Path:
    """Create a directory that its owner, the calling process, has to remove.

    Directories of owners that ended without removing them are deleted now. The name identifies the
    owner, so that a directory never exists without one. Linux only: elsewhere they stay.
    """
    remove_abandoned()
    prefix = f"seckill-{kind}-{process_identity(os.getpid())}-"
    return Path(tempfile.mkdtemp(prefix=prefix))


def remove_abandoned() -> None:
    """Remove the directories whose owner has ended; owners in other containers count as alive."""
    here = process_identity(os.getpid()).partition(".")[0]
    for directory in Path(tempfile.gettempdir()).glob(f"seckill-*-{here}.*"):
        named = _NAME.fullmatch(directory.name)
        if named and process_identity(int(named[2])) != named[1]:
            shutil.rmtree(directory, ignore_errors=True)
