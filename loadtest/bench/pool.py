"""Processes that do the same thing at the same moment."""

import multiprocessing
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, Self

from devservers.processes import die_with_parent

LEAD = 0.01
PATIENCE = 60.0
# fork: a crew starts at once, with all its code loaded.
_fork = multiprocessing.get_context("fork")


class Gate:
    """Where a crew gathers; it opens for all at one monotonic time."""

    def __init__(self, parties: int) -> None:
        self._opens = shared_time()
        self._barrier = _fork.Barrier(parties, action=self._set)

    def _set(self) -> None:
        self._opens.value = time.monotonic() + LEAD

    def __call__(self) -> float:
        """Wait for the others; the time at which all went on."""
        self._barrier.wait(PATIENCE)
        opens = float(self._opens.value)
        time.sleep(max(0.0, opens - time.monotonic()))
        return opens


class CrewFailed(RuntimeError):
    """A member met an error; the message ends with its traceback."""


def _member(work: Callable[[int], object], number: int, out: Connection) -> None:
    die_with_parent()
    try:
        out.send((work(number), None))
    except BaseException:
        out.send((None, traceback.format_exc()))
        raise


class Crew:
    """`size` processes that each do `work(number)`; none is left at the end of the block."""

    def __init__(self, work: Callable[[int], Any], size: int = 1) -> None:
        self._members: list[tuple[ForkProcess, Connection]] = []
        for number in range(size):
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=_member, args=(work, number, theirs), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def results(self, *, patience: float = PATIENCE) -> list[Any]:
        """What each returned; CrewFailed when one could not, or was silent for too long."""
        results = []
        for _process, ours in self._members:
            if not ours.poll(patience):
                raise CrewFailed("no answer")
            result, error = ours.recv()
            if error:
                raise CrewFailed(error)
            results.append(result)
        return results

    def survivors(self) -> list[Any]:
        """What each returned that was not killed meanwhile."""
        results = []
        for _process, ours in self._members:
            with suppress(EOFError):
                if ours.poll(PATIENCE):
                    results.append(ours.recv()[0])
        return results

    def kill(self) -> None:
        """SIGKILL to all of them."""
        for process, _ours in self._members:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        for process, ours in self._members:
            process.join()
            ours.close()


def shared_time() -> Any:
    """A moment, in `.value`, that a member can tell the one who started it."""
    return _fork.Value("d", 0.0, lock=False)
