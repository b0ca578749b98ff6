"""A check that runs in a forked child."""

import os
from collections.abc import Callable


def passes_in_child(check: Callable[[], object]) -> bool:
    """Return True if `check` returned a true value in a forked child, and raised nothing."""
    child = os.fork()
    if child == 0:
        passed = False
        try:
            passed = bool(check())
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
