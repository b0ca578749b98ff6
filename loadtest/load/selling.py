"""One sale is sold out by a crowd in several processes, while a fault may strike one of them."""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from threading import BrokenBarrierError

from loadtest.history.recorder import Recorder
from loadtest.load.buyers import START_SECONDS, Answer, Crowd, Told, run
from loadtest.load.fault_plan import FAULTS, PAUSE, Fired, Strike
from loadtest.load.plan import Plan
from shop.models import User

PROGRESS_SECONDS = 0.1
# fork: they share the code that is loaded already, so that four start at once.
FORK = multiprocessing.get_context("fork")


@dataclass(slots=True, kw_only=True)
class Sold:
    """What the crowd was told, as told by shared memory: it outlives a killed process."""

    started: float
    answers: list[Answer]
    errors: list[str]
    fired: list[Fired]


@dataclass(slots=True, kw_only=True)
class _Struck:
    """The director's side of a strike."""

    hears: Connection
    plan: Plan
    recorder: Recorder
    strike_server: Callable[[], object]
    told: "ctypes.Array[Told]"
    passes_on: bool
    fired: list[Fired] = field(default_factory=list)

    def notice(self) -> None:
        self.fired.append(fired := Fired(*self.hears.recv()))
        is_killed = FAULTS[self.plan.fault].holder == "kill"
        victim = {"target": f"process {fired.pid}"} if is_killed else {}
        self.recorder.note("fault", "start", what=self.plan.fault, **victim)
        if FAULTS[self.plan.fault].server:
            self.strike_server()

    def resume(self, *, always: bool = False) -> None:
        if FAULTS[self.plan.fault].holder == "stop":
            for one in self.fired:
                if always or one.resumed or self._is_over(one):
                    one.resumed = one.resumed or time.monotonic()
                    with suppress(ProcessLookupError):
                        os.kill(one.pid, signal.SIGCONT)

    def _is_over(self, one: Fired) -> bool:
        """Once somebody who came after the strike has bought, where the lock passes on.

        The buyers beside the struck one are stopped, too: a queue may grant the lock to each of
        them, for a lease, before it comes to another process.
        """
        stopped = time.monotonic() - one.at
        if self.passes_on and stopped < self.plan.patience:
            others = any(told.kind == b"order" and told.began > one.at for told in self.told)
            return stopped >= PAUSE and others
        return stopped >= PAUSE

    def killed(self, worker: ForkProcess) -> bool:
        return FAULTS[self.plan.fault].holder == "kill" and any(
            one.pid == worker.pid for one in self.fired
        )


def sell(
    plan: Plan,
    slug: str,
    customers: Sequence[User],
    *,
    backend: str,
    history: Path,
    progress: Callable[[int], object],
    strike_server: Callable[[], object],
    passes_on: bool,
) -> Sold:
    """Let the crowd in, and return when the last has been served.

    `progress` hears how many were served; `strike_server` is to kill the server of the fault;
    `passes_on`: another process will get the lock whose holder is stopped.
    """
    threads = plan.processes * plan.threads
    hears, notices = FORK.Pipe(duplex=False)
    recorder = Recorder(history, "lab")
    crowd = Crowd(
        plan=plan,
        slug=slug,
        customers=customers,
        start=FORK.Barrier(threads + 1),
        served=RawArray("l", threads),
        sold=RawArray("l", threads),
        told=RawArray(Told, len(customers)),
        strike=Strike(
            fault=FAULTS[plan.fault],
            after=plan.strike_after,
            struck=FORK.Value("i"),
            notices=notices,
        )
        if plan.fault != "none"
        else None,
        backend=backend,
        history=history,
    )
    struck = _Struck(
        hears=hears,
        plan=plan,
        recorder=recorder,
        strike_server=strike_server,
        told=crowd.told,
        passes_on=passes_on,
    )
    workers = {number: _start(crowd, number) for number in range(plan.processes)}
    try:
        with suppress(BrokenBarrierError):  # whoever broke it says why
            crowd.start.wait(START_SECONDS)
        started = time.monotonic()
        errors = _attend(crowd, workers, struck, progress)
    finally:
        struck.resume(always=True)
        for worker, _ in workers.values():
            worker.join()
    answers = [
        Answer(told.kind.decode(), told.sends, told.began, told.ended) for told in crowd.told
    ]
    return Sold(
        started=started,
        answers=[answer for answer in answers if answer.kind],
        errors=errors,
        fired=struck.fired,
    )


Worker = tuple[ForkProcess, Connection]


def _start(crowd: Crowd, number: int, *, late: bool = False) -> Worker:
    ours, theirs = FORK.Pipe(duplex=False)
    worker = FORK.Process(target=run, args=(crowd, number, theirs, late), daemon=True)
    worker.start()
    theirs.close()
    return worker, ours


def _attend(
    crowd: Crowd,
    workers: dict[int, Worker],
    struck: _Struck,
    progress: Callable[[int], object],
) -> list[str]:
    """Wait for the workers; replace the one that the fault killed. What went wrong."""
    errors: list[str] = []
    waiting = {ours: number for number, (_, ours) in workers.items()}
    while waiting:
        ready = wait([*waiting, struck.hears], timeout=PROGRESS_SECONDS)
        if struck.hears in ready:  # before the pipe of whoever died of it
            struck.notice()
        struck.resume()
        for ours in [one for one in waiting if one in ready]:
            number = waiting.pop(ours)
            try:
                errors += ours.recv()
            except EOFError:
                if struck.hears.poll():
                    struck.notice()
                if struck.killed(workers[number][0]):
                    # As a web server's master does; the buyers send their forms again.
                    workers[number] = _start(crowd, number, late=True)
                    waiting[workers[number][1]] = number
                else:
                    errors.append("a process died")
        progress(sum(crowd.served))
    return errors
