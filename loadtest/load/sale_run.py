"""Sell out one sale from several processes, while a fault may be injected into one of them."""

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
from typing import Any

from loadtest.history.recorder import Recorder
from loadtest.load.buyers import START_TIMEOUT, Outcome, SaleLoad, run_buyers
from loadtest.load.fault_plan import FAULTS, PAUSE_SECONDS, FaultTrigger, Injection, marks
from loadtest.load.plan import Plan
from shop.models import User

PROGRESS_SECONDS = 0.1
# fork: the processes share the code that is loaded already, so that four start at once.
FORK = multiprocessing.get_context("fork")
Worker = tuple[ForkProcess, Connection]


@dataclass(slots=True, kw_only=True)
class SaleResult:
    """The outcomes, in shared memory: it outlives a killed process."""

    started: float
    outcomes: list[Outcome]
    errors: list[str]
    injections: list[Injection]


@dataclass(slots=True, kw_only=True)
class _FaultMonitor:
    """The parent's side of a fault: records it, resumes a stopped process, recognises a killed."""

    notices: Connection
    plan: Plan
    recorder: Recorder
    kill_server: Callable[[], object]
    outcomes: "ctypes.Array[Outcome]"
    passes_on: bool
    injections: list[Injection] = field(default_factory=list)

    def receive(self) -> None:
        self.injections.append(injection := Injection(*self.notices.recv()))
        fault = FAULTS[self.plan.fault]
        target = {"target": f"process {injection.pid}"} if fault.holder == "kill" else {}
        self.recorder.note("fault", "start", what=self.plan.fault, **target)
        if fault.server:
            self.kill_server()

    def resume(self, *, always: bool = False) -> None:
        if FAULTS[self.plan.fault].holder == "stop":
            for injection in self.injections:
                if always or injection.resumed or self._is_over(injection):
                    injection.resumed = injection.resumed or time.monotonic()
                    with suppress(ProcessLookupError):
                        os.kill(injection.pid, signal.SIGCONT)

    def _is_over(self, injection: Injection) -> bool:
        """Return True once a later buyer has bought, if the lock expires, or the pause is over.

        The other buyers of the stopped process are stopped, too: a queue may grant the lock to
        each of them, for a lease, before another process gets it.
        """
        stopped = time.monotonic() - injection.at
        if self.passes_on and stopped < self.plan.patience:
            others = any(
                outcome.kind == "order" and outcome.began > injection.at
                for outcome in self.outcomes
            )
            return stopped >= PAUSE_SECONDS and others
        return stopped >= PAUSE_SECONDS

    def has_killed(self, process: ForkProcess) -> bool:
        return FAULTS[self.plan.fault].holder == "kill" and any(
            injection.pid == process.pid for injection in self.injections
        )


def run_sale(
    plan: Plan,
    slug: str,
    customers: Sequence[User],
    *,
    backend: str,
    history: Path,
    progress: Callable[..., object],
    kill_server: Callable[[], object],
    passes_on: bool,
) -> SaleResult:
    """Let all customers buy, and return when the last of them has been served.

    `progress` is called with the seconds since the start, the buyers served, the units sold and the
    marks of faults; `kill_server` injects a fault of a server.
    `passes_on`: another process gets the lock while its holder is stopped.
    """
    threads = plan.processes * plan.threads
    notices, sender = FORK.Pipe(duplex=False)
    recorder = Recorder(history, "lab")
    load = SaleLoad(
        plan=plan,
        slug=slug,
        customers=customers,
        start=FORK.Barrier(threads + 1),
        served=RawArray("l", threads),
        sold=RawArray("l", threads),
        outcomes=RawArray(Outcome, len(customers)),
        trigger=FaultTrigger(
            fault=FAULTS[plan.fault],
            after=plan.strike_after,
            count=FORK.Value("i"),
            notices=sender,
        )
        if plan.fault != "none"
        else None,
        backend=backend,
        history=history,
    )
    monitor = _FaultMonitor(
        notices=notices,
        plan=plan,
        recorder=recorder,
        kill_server=kill_server,
        outcomes=load.outcomes,
        passes_on=passes_on,
    )
    workers = {number: _start(load, number) for number in range(plan.processes)}
    try:
        with suppress(BrokenBarrierError):  # the thread that broke it reports the reason
            load.start.wait(START_TIMEOUT)
        started = time.monotonic()
        errors = _wait_for_workers(
            load, workers, monitor, lambda: progress(**_now(load, monitor, started))
        )
    finally:
        monitor.resume(always=True)
        for process, _ in workers.values():
            process.join()
    outcomes = [outcome for outcome in load.outcomes if outcome.kind]
    return SaleResult(
        started=started, outcomes=outcomes, errors=errors, injections=monitor.injections
    )


def _start(load: SaleLoad, number: int, *, late: bool = False) -> Worker:
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=run_buyers, args=(load, number, theirs, late), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _wait_for_workers(
    load: SaleLoad,
    workers: dict[int, Worker],
    monitor: _FaultMonitor,
    progress: Callable[[], object],
) -> list[str]:
    """Wait for the workers, replace those that the fault killed, and return the errors."""
    errors: list[str] = []
    waiting = {ours: number for number, (_, ours) in workers.items()}
    while waiting:
        ready = wait([*waiting, monitor.notices], timeout=PROGRESS_SECONDS)
        if monitor.notices in ready:  # before the pipe of the process that it killed
            monitor.receive()
        monitor.resume()
        for ours in [pipe for pipe in waiting if pipe in ready]:
            number = waiting.pop(ours)
            try:
                errors += ours.recv()
            except EOFError:
                if monitor.notices.poll():
                    monitor.receive()
                if monitor.has_killed(workers[number][0]):
                    # As a web server's master does; the buyers send their forms again.
                    workers[number] = _start(load, number, late=True)
                    waiting[workers[number][1]] = number
                else:
                    errors.append("a process ended early")
        progress()
    return errors


def _now(load: SaleLoad, monitor: _FaultMonitor, started: float) -> dict[str, Any]:
    """Return the figures of this moment for a page, which cost the load nothing to collect."""
    return {
        "at": round(time.monotonic() - started, 3),
        "served": sum(load.served),
        "sold": sum(load.sold),
        "marks": marks(load.plan.fault, monitor.injections, started),
    }
