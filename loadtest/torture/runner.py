"""Run plans on the private servers of their backend, and judge each run."""

import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devservers import ServerError
from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import WorkerProcess
from loadtest.history.recorder import Recorder
from loadtest.load.stores import private_environ
from loadtest.torture.faults import Injector
from loadtest.torture.judge import BOUND, MORE_THREADS, judge_ends
from loadtest.torture.plan import SWITCH_AFTER, THREADS, Fault, Plan
from loadtest.torture.stock import SHOP_BOUND, judge_sales
from loadtest.torture.stores import COMMANDS, OPERATOR, OTHER, START_SECONDS, Stores
from loadtest.torture.workload import ALIAS, REGISTER

LEAD_SECONDS = 0.05
JUDGE_SECONDS = 600.0
HANG_SECONDS = 25.0
"""Seconds after the end of the work at which a process counts as hanging."""


@dataclass
class Run:
    """The result of one run."""

    plan: Plan
    violations: list[str]
    undecided: int
    counts: dict[str, int]
    proofs: list[tuple[Fault, str]] = field(default_factory=list)
    seconds: float = 0.0
    events: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the result in values that JSON can represent."""
        return {
            "plan": self.plan.as_json(),
            "violations": self.violations,
            "undecided": self.undecided,
            "counts": self.counts,
            "faults": [{"fault": str(fault), "proof": proof} for fault, proof in self.proofs],
            "seconds": round(self.seconds, 2),
            "events": self.events,
        }


class Torture:
    """Runs plans; the servers of a backend are started once."""

    def __init__(self, *, commands: str = COMMANDS, env: Mapping[str, str] | None = None) -> None:
        self._commands, self._env = commands, env
        self._stores: Stores | None = None
        self._judge = WorkerProcess("loadtest.torture.judge:Commands", private_environ(Path()))

    def __enter__(self) -> "Torture":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._judge.close()
        self._close()

    def _close(self) -> None:
        if self._stores is not None:
            self._stores.__exit__()
            self._stores = None

    def run(self, plan: Plan) -> Run:
        """Run a plan; the servers of another backend are stopped first."""
        if self._stores is None or self._stores.store != plan.store:
            self._close()
            stores = Stores(plan.store, commands=self._commands, env=self._env)
            try:
                self._stores = stores.__enter__()
            except FaultFailed as error:
                raise ServerError(f"The processes did not start: {error}") from error
        try:
            return _run(self._stores, plan, self._judge)
        except FaultFailed:
            self._close()  # a process hangs or has ended: the next run gets new ones
            raise


def _run(stores: Stores, plan: Plan, judge: WorkerProcess) -> Run:
    started, run = time.monotonic(), uuid.uuid4().hex[:12]
    folder = stores.folder / run
    folder.mkdir()
    names = [f"torture-{run}-{number}" for number in range(plan.names)]
    numbers = range(1, plan.processes + 1)
    workers = {number: stores.worker(number) for number in (OPERATOR, *numbers)}
    recorder = Recorder(folder, "lab")
    try:
        before = {}
        for number, worker in workers.items():
            fields = {"folder": str(folder), "actor": f"process {number}"}
            found = stores.settings(number, plan.ttl, linked=plan.linked(number))
            worker.send("open", **found, **fields)
        for number, worker in workers.items():  # some of them have just been started
            before[number] = worker.receive(START_SECONDS)["resources"]
        _create_register(folder / REGISTER, names)
        operator = workers[OPERATOR]
        if plan.workload == "switch":
            operator.call("activate", alias=ALIAS)
        if plan.terms:
            operator.call("open_sales", names=names, terms=list(plan.terms))
        begin = time.monotonic() + LEAD_SECONDS
        work = {"kind": plan.workload, "names": names, "end": begin + plan.seconds}
        for number in numbers:
            workers[number].send("work", threads=THREADS, seed=f"{plan.seed} {number}", **work)
        injector = Injector(stores, recorder)
        injecting = threading.Thread(target=injector.run, args=(plan.faults, begin))
        injecting.start()
        switches = _switch(operator, begin + plan.seconds) if plan.switches else 0
        injecting.join()
        injector.recover()
        counts, errors = {"switches": switches} if switches else {}, list[str]()
        for number in numbers:
            if (reply := _reply(stores, number)) is None:
                continue
            errors += [f"errors: {error}" for error in reply["errors"]]
            for what, count in reply["counts"].items():
                counts[what] = counts.get(what, 0) + count
        if not plan.terms:
            judge.send("judge", plan=plan.as_json(), folder=str(folder))
        bound = SHOP_BOUND if plan.terms else BOUND
        probe = operator.call("probe", names=names, kind=plan.workload, timeout=bound)
        alive = {number: worker for number, worker in workers.items() if worker.is_alive}
        for number, worker in alive.items():
            most = before[number]["threads"] + MORE_THREADS
            worker.send("leftovers", run=run, threads=most, timeout=BOUND)
        ends = [
            worker.receive() | {"actor": f"process {number}", "before": before[number]}
            for number, worker in alive.items()
        ]
        if plan.terms:
            found = asdict(judge_sales(plan, folder, probe["sales"]))
        else:
            found = judge.receive(JUDGE_SECONDS)
        violations = errors + found["violations"] + judge_ends(plan, probe, ends)
        events, seconds = found["facts"]["events"], time.monotonic() - started
        return Run(plan, violations, found["undecided"], counts, injector.proofs, seconds, events)
    finally:
        recorder.close()
        shutil.rmtree(folder, ignore_errors=True)


def _reply(stores: Stores, number: int) -> dict[str, Any] | None:
    """Return what a process counted; None if it was killed, which starts the next one."""
    worker = stores.workers[number]
    if worker.is_alive:
        return worker.receive(HANG_SECONDS)
    stores.worker(number)
    return None


def _switch(operator: Any, end: float) -> int:
    """Switch the policy to the other backend and back until the end of the work."""
    aliases, switches = [OTHER, ALIAS], 0
    time.sleep(SWITCH_AFTER)
    while time.monotonic() < end - 0.5:
        reply = operator.call("switch", alias=aliases[switches % 2])
        if not reply["ok"]:
            time.sleep(0.2)
            continue
        switches += 1
    return switches


def _create_register(path: Path, names: list[str]) -> None:
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.execute("CREATE TABLE register (name TEXT PRIMARY KEY, value, fence)")
        rows = [(name, 0, 0) for name in names]
        opened.executemany("INSERT INTO register VALUES (?, ?, ?)", rows)
