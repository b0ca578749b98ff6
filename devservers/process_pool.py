"""Forked processes that run the same function at the same moment."""

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Self, cast

from devservers.process import die_with_parent

LEAD_SECONDS = 0.01
TIMEOUT = 60.0
TICK_SECONDS = 0.1
# fork: the processes start at once, with all their code loaded.
_fork = multiprocessing.get_context("fork")


class StartGate:
    """A barrier that opens for all parties at one monotonic time."""

    def __init__(self, parties: int) -> None:
        self._opens = shared_time()
        self._barrier = _fork.Barrier(parties, action=self._set)

    def _set(self) -> None:
        self._opens.value = time.monotonic() + LEAD_SECONDS

    def __call__(self) -> float:
        """Wait for the other parties; return the monotonic time at which all of them continue.

        Raise PoolFailed if one of them does not come.
        """
        try:
            self._barrier.wait(TIMEOUT)
        except threading.BrokenBarrierError:
            late = f"not all {self._barrier.parties} were ready within {TIMEOUT:g} s"
            raise PoolFailed(late) from None
        opens = float(self._opens.value)
        time.sleep(max(0.0, opens - time.monotonic()))
        return opens


class PoolFailed(RuntimeError):
    """A process of the pool raised an error; the message ends with its traceback."""

    @property
    def reason(self) -> str:
        """The last line of the message."""
        return str(self).strip().rpartition("\n")[2]


def _run(work: Callable[[int], object], number: int, out: Connection) -> None:
    die_with_parent()
    try:
        out.send((work(number), None))
    except BaseException:
        out.send((None, traceback.format_exc()))
        raise


class ProcessPool:
    """Run `work(number)` in `size` processes; all of them have ended when the block ends."""

    def __init__(self, work: Callable[[int], Any], size: int = 1) -> None:
        self._work = work
        self._processes: list[tuple[ForkProcess, Connection]] = []
        for number in range(size):
            self._processes.append(self._start(number))

    def _start(self, number: int) -> tuple[ForkProcess, Connection]:
        ours, theirs = _fork.Pipe(duplex=False)
        process = _fork.Process(target=_run, args=(self._work, number, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def results(
        self,
        *,
        timeout: float = TIMEOUT,
        tick: Callable[[], object] = lambda: None,
        replace: Callable[[int, int], bool] = lambda number, pid: False,
    ) -> list[Any]:
        """Return the results; raise PoolFailed after an error or `timeout` seconds of waiting.

        While it waits, it calls `tick` ten times a second. A killed process is started again if
        `replace` returns True for its number and pid.
        """
        found: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        while len(found) < len(self._processes):
            if time.monotonic() > deadline:
                raise PoolFailed("no answer")
            tick()
            pipes = {own[1]: n for n, own in enumerate(self._processes) if n not in found}
            for pipe in wait([*pipes], TICK_SECONDS):
                number = pipes[cast(Connection, pipe)]
                try:
                    result, error = cast(Connection, pipe).recv()
                except EOFError:
                    self._replace(number, replace)
                    continue
                if error:
                    raise PoolFailed(error)
                found[number] = result
        return [found[number] for number in sorted(found)]

    def _replace(self, number: int, may_replace: Callable[[int, int], bool]) -> None:
        process, _pipe = self._processes[number]
        process.join()
        if not may_replace(number, process.pid or 0):
            raise PoolFailed("a process was killed")
        self._processes[number] = self._start(number)

    def kill(self) -> None:
        """Send SIGKILL to every process."""
        for process, _ours in self._processes:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        for process, ours in self._processes:
            process.join()
            ours.close()


def shared_time() -> Any:
    """Return shared memory for one time; a process of a pool reports it in `.value`."""
    return _fork.Value("d", 0.0, lock=False)
