"""Programs that tests run to their end."""

import subprocess
from typing import Any


def run(*command: object, **options: Any) -> tuple[int, str]:
    """Return the exit code of a program and all that it has printed."""
    done = subprocess.run(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        **options,
    )
    return done.returncode, done.stdout


def output(*command: object, **options: Any) -> str:
    """Return what a program has printed, which must succeed."""
    code, printed = run(*command, **options)
    assert code == 0, printed
    return printed
