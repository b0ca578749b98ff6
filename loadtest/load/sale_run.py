"""Sell out one sale from several processes, while faults hit them and the servers."""

import json
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import BrokenBarrierError
from typing import Any

from devservers.faults.waiting import until
from devservers.process import is_stopped
from devservers.process_pool import PoolFailed, ProcessPool
from loadtest.kernel.faults import FAULTS, NAMES, PAUSE_SECONDS, Fault, Injection, fail, marks
from loadtest.kernel.history import Recorder
from loadtest.kernel.topology import Stores
from loadtest.load.buyers import START_TIMEOUT, Outcome, SaleLoad, run_buyers

PROGRESS_SECONDS = 0.1


@dataclass(slots=True)
class FaultMonitor:
    """The parent's side of faults: it hits servers, and resumes or recognises hit processes."""

    load: SaleLoad
    recorder: Recorder
    stores: Stores
    passes_on: bool
    injections: list[Injection] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    hitting: threading.Lock = field(default_factory=threading.Lock)

    def listen(self) -> None:
        """Receive the notices of injections, and the requests on stdin."""
        while self.load.notices.poll():
            injection = Injection(*self.load.notices.recv())
            fault = FAULTS[injection.name]
            if fault.server and sum(self.load.served) == len(self.load.customers):
                continue  # too late: no buyer is left whom it could disturb
            self.injections.append(injection)
            target = {"target": f"process {injection.pid}"} if fault.holder == "kill" else {}
            at = round(injection.at * 1e9)  # not when the notice is read, which may be later
            self.recorder.note("fault", "start", t=at, what=injection.name, **target)
            if fault.holder != "kill":
                threading.Thread(target=self._hold, args=(injection, fault), daemon=True).start()
        if select.select([sys.stdin], [], [], 0)[0]:
            for asked in map(json.loads, os.read(sys.stdin.fileno(), 1 << 16).splitlines()):
                if asked["sale"] == self.load.slug:  # not of an earlier run
                    self.requests.append(asked["fault"])
        if self.requests and self.is_idle and not self.load.requested.value:
            self.load.requested.value = NAMES.index(self.requests.pop(0))

    def _hold(self, injection: Injection, fault: Fault) -> None:
        """Hit a server, or resume a stopped process when its pause is over."""
        try:
            if fault.server:
                with self.hitting:
                    injection.proof = fail(injection.name, self.stores)
            else:
                until(lambda: is_stopped(injection.pid))
                injection.proof = f"process {injection.pid} stopped (state T)"
                longest = self.load.plan.patience + 2 * PAUSE_SECONDS
                until(lambda: self._is_over(injection), "the end of the pause", longest)
        finally:
            injection.end = time.monotonic()
            if fault.holder:
                with suppress(ProcessLookupError):
                    os.kill(injection.pid, signal.SIGCONT)

    @property
    def is_idle(self) -> bool:
        """True while no fault is in force."""
        return all(one.end for one in self.injections)

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

    def has_killed(self, pid: int) -> bool:
        """Return True if a fault killed the process, which is the proof of the fault."""
        self.listen()
        for injection in self.injections:
            if injection.pid == pid and FAULTS[injection.name].holder == "kill":
                injection.end = time.monotonic()
                injection.proof = f"process {injection.pid} ended by SIGKILL"
                return True
        return False


def run_sale(
    load: SaleLoad, stores: Stores, *, progress: Callable[..., object], passes_on: bool
) -> tuple[float, list[Outcome], list[Injection]]:
    """Let all customers buy; return the start, the outcomes and the injections of faults.

    Raise PoolFailed on errors. The outcomes are in shared memory, which outlives a killed process.
    `progress` is called with the seconds since the start, the buyers served, the units sold and the
    marks of faults. Faults are requested on stdin. `passes_on`: another process gets the lock while
    its holder is stopped.
    """
    recorder = Recorder(load.history, "lab")
    monitor = FaultMonitor(load, recorder, stores, passes_on)
    late: set[int] = set()

    def replace(number: int, pid: int) -> bool:
        """Replace a killed process, as a web server does; the buyers send their forms again."""
        late.add(number)
        return monitor.has_killed(pid)

    def tick() -> None:
        monitor.listen()
        progress(**_now(load, monitor, started))

    with (
        closing(recorder),
        ProcessPool(
            lambda number: run_buyers(load, number, number in late), load.plan.processes
        ) as pool,
    ):
        with suppress(BrokenBarrierError):  # the thread that broke it reports the reason
            load.start.wait(START_TIMEOUT)
        started = time.monotonic()
        pool.results(timeout=math.inf, tick=tick, replace=replace)
        if load.start.broken:  # by none of them: its time was over
            raise PoolFailed(f"not all buyers were ready within {START_TIMEOUT:g} s")
        monitor.listen()  # a notice may have come with the last results
        while not monitor.is_idle:
            tick()
            time.sleep(PROGRESS_SECONDS)
        tick()
    outcomes = [outcome for outcome in load.outcomes if outcome.kind]
    return started, outcomes, monitor.injections


def _now(load: SaleLoad, monitor: FaultMonitor, started: float) -> dict[str, Any]:
    """Return the figures of this moment for a page, which cost the load nothing to collect."""
    return {
        "at": round(time.monotonic() - started, 3),
        "served": sum(load.served),
        "sold": sum(load.sold),
        "marks": marks(monitor.injections, started),
        "requested": NAMES[load.requested.value],
    }
