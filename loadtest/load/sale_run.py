"""Sell out one sale from several processes, while a fault may be injected into one of them."""

import json
import multiprocessing
import os
import signal
import sys
import threading
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

from devservers.faults.waiting import FaultFailed, until
from devservers.process import process_state
from loadtest.history.recorder import Recorder
from loadtest.kernel.faults import (
    FAULTS,
    NAMES,
    PAUSE_SECONDS,
    FaultTrigger,
    Injection,
    fail,
    marks,
)
from loadtest.kernel.topology import Stores
from loadtest.load.buyers import START_TIMEOUT, Outcome, SaleLoad, run_buyers
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
    """The parent's side of faults: it hits servers, resumes stopped processes, replaces killed."""

    notices: Connection
    load: SaleLoad
    recorder: Recorder
    stores: Stores
    passes_on: bool
    injections: list[Injection] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    hitting: threading.Lock = field(default_factory=threading.Lock)

    def receive(self) -> None:
        self.injections.append(injection := Injection(*self.notices.recv()))
        fault = FAULTS[injection.name]
        target = {"target": f"process {injection.pid}"} if fault.holder == "kill" else {}
        self.recorder.note("fault", "start", what=injection.name, **target)
        if fault.server:
            threading.Thread(target=self._hit_server, args=(injection,)).start()
        elif fault.holder == "stop":
            with suppress(FaultFailed):
                until(lambda: process_state(injection.pid) == "T")
                injection.proof = f"process {injection.pid} stopped (state T)"

    def _hit_server(self, injection: Injection) -> None:
        try:
            with self.hitting:
                injection.proof = fail(injection.name, self.stores)
        finally:
            injection.end = time.monotonic()

    def resume(self, *, always: bool = False) -> None:
        for injection in self.injections:
            if FAULTS[injection.name].holder == "stop" and (
                always or injection.end or self._is_over(injection)
            ):
                injection.end = injection.end or time.monotonic()
                with suppress(ProcessLookupError):
                    os.kill(injection.pid, signal.SIGCONT)

    @property
    def is_idle(self) -> bool:
        """True while no fault is in force."""
        return all(one.end for one in self.injections)

    def request_next(self) -> None:
        """Let the next holder inject the next requested fault once the last one is over."""
        if self.requests and self.is_idle and not self.load.trigger.requested.value:
            self.load.trigger.requested.value = NAMES.index(self.requests.pop(0))

    def _is_over(self, injection: Injection) -> bool:
        """Return True once a later buyer has bought, if the lock expires, or the pause is over.

        The other buyers of the stopped process are stopped, too: a queue may grant the lock to
        each of them, for a lease, before another process gets it.
        """
        stopped = time.monotonic() - injection.at
        if self.passes_on and stopped < self.load.plan.patience:
            others = any(
                outcome.kind == "order" and outcome.began > injection.at
                for outcome in self.load.outcomes
            )
            return stopped >= PAUSE_SECONDS and others
        return stopped >= PAUSE_SECONDS

    def has_killed(self, process: ForkProcess) -> bool:
        """Return True if a fault killed the process, which is the proof of the fault."""
        process.join()
        for injection in self.injections:
            if injection.pid == process.pid and process.exitcode == -signal.SIGKILL:
                injection.end = time.monotonic()
                injection.proof = f"process {injection.pid} ended by SIGKILL"
                return True
        return False


def run_sale(
    plan: Plan,
    slug: str,
    customers: Sequence[User],
    *,
    backend: str,
    history: Path,
    progress: Callable[..., object],
    stores: Stores,
    passes_on: bool,
) -> SaleResult:
    """Let all customers buy, and return when the last of them has been served.

    `progress` is called with the seconds since the start, the buyers served, the units sold and the
    marks of faults. Faults are requested on stdin. `passes_on`: another process gets the lock while
    its holder is stopped.
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
            planned=plan.fault,
            after=plan.strike_after if plan.fault != "none" else (),
            count=FORK.Value("i"),
            requested=FORK.Value("i"),
            notices=sender,
        ),
        backend=backend,
        history=history,
    )
    monitor = _FaultMonitor(
        notices=notices, load=load, recorder=recorder, stores=stores, passes_on=passes_on
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
    parent = [sys.stdin.fileno()]
    while waiting or not monitor.is_idle:
        ready = wait([*waiting, *parent, monitor.notices], timeout=PROGRESS_SECONDS)
        if monitor.notices in ready:  # before the pipe of the process that it killed
            monitor.receive()
        for file in [one for one in parent if one in ready]:
            if not (lines := os.read(file, 1 << 16)):
                parent = []  # it has ended, and a closed pipe is always ready
            for asked in map(json.loads, lines.splitlines()):
                if asked["sale"] == load.slug:  # not of an earlier run
                    monitor.requests.append(asked["fault"])
        monitor.resume()
        monitor.request_next()
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
        "marks": marks(monitor.injections, started),
        "requested": NAMES[load.trigger.requested.value],
    }
