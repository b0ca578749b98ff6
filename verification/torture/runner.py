"""Run plans on the private servers of their backend, and judge each run."""

import random
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from devservers import ServerError
from devservers.faults.waiting import FaultFailed, until
from devservers.faults.worker import WorkerProcess
from loadtest.kernel.history import Recorder
from verification.torture.catalogue import ALIAS, OTHER
from verification.torture.faults import Injector
from verification.torture.judge import (
    BOUND,
    MORE_THREADS,
    SHOP_BOUND,
    judge,
    judge_ends,
    judge_sales,
)
from verification.torture.plan import SWITCH_AFTER, Fault, Plan
from verification.torture.stores import COMMANDS, START_SECONDS, SWITCHER, Stores

LEAD_SECONDS = 0.05
HANG_SECONDS = 25.0
"""Seconds after the end of the work at which a process counts as hanging."""


@dataclass
class Run:
    """The result of one run."""

    plan: Plan
    violations: list[str]
    undecided: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    proofs: list[tuple[Fault, str]] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        plan, counts = self.plan, f"{self.counts.get('grants', 0)} grants"
        if "switches" in self.counts:
            counts += f" and {self.counts['switches']} switches"
        faults = "; ".join(str(fault) for fault, _ in self.proofs)
        verdict = "; ".join(self.violations) or ("undecided" if self.undecided else "ok")
        return f"{plan.seed} {plan.backend} {plan.workload}: {counts}; {faults}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        """Return the result in values that JSON can represent."""
        shown = ("violations", "undecided", "counts")
        return {name: vars(self)[name] for name in shown} | {
            "plan": asdict(self.plan),
            "faults": [{"fault": str(fault), "proof": proof} for fault, proof in self.proofs],
            "seconds": round(self.seconds, 2),
        }


class Torture(ExitStack):
    """Runs plans; the servers of a backend are started once."""

    def __init__(self, *, commands: str = COMMANDS, env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._commands, self._env = commands, env
        self._stores: Stores | None = None

    def run(self, plan: Plan) -> Run:
        """Run a plan; the servers of another backend are stopped first."""
        if self._stores is None or self._stores.store != plan.store:
            self._stop()
            stores = Stores(plan.store, commands=self._commands, env=self._env)
            try:
                self._stores = self.enter_context(stores)
            except FaultFailed as error:
                raise ServerError(f"The processes did not start: {error}") from error
        try:
            return _run(self._stores, plan)
        except FaultFailed:
            # A process hangs or has ended.
            self._stop()
            raise

    def _stop(self) -> None:
        self._stores = None
        self.close()


def _run(stores: Stores, plan: Plan) -> Run:
    started, run = time.monotonic(), uuid.uuid4().hex[:12]
    folder = stores.folder / run
    folder.mkdir()
    names = [f"torture-{run}-{number}" for number in range(plan.names)]
    numbers = range(1, plan.processes + 1)
    workers = {number: stores.worker(number) for number in (SWITCHER, *numbers)}
    switcher = workers[SWITCHER]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        recorder = stack.enter_context(closing(Recorder(folder, "lab")))
        for number, worker in workers.items():
            given = stores.settings(number, plan.ttl, linked=plan.linked(number))
            worker.send("open", folder=str(folder), actor=f"process {number}", **given)
        # Some of them have just been started.
        before = {one: workers[one].receive(START_SECONDS)["resources"] for one in workers}
        if plan.workload == "switch":
            activate = partial(switcher.call, "activate", alias=ALIAS, mode="conditional")
            until(lambda: activate()["ok"], "the policy")
        if plan.terms:
            sell = partial(switcher.call, "open_sales", names=names, terms=list(plan.terms))
            until(lambda: sell()["ok"], "the sales")
        begin = time.monotonic() + LEAD_SECONDS
        end = begin + plan.seconds
        for number in numbers:
            asked = {"kind": plan.workload, "names": names, "seed": f"{plan.seed} {number}"}
            workers[number].send("work", end=end, **asked)
        injector = Injector(stores, recorder)
        injecting = threading.Thread(target=injector.run, args=(plan.faults, begin))
        injecting.start()
        stack.callback(injecting.join)  # it would start a server that is stopped meanwhile
        counts = Counter(_switched(switcher, plan, end))
        injecting.join()
        injector.recover()
        violations = list[str]()
        killed = {one.target for one, proof in injector.proofs if proof and one.kind == "kill"}
        for number in numbers:
            if number in killed:
                stores.worker(number)
                continue
            reply = workers[number].receive(max(0.0, end - time.monotonic()) + HANG_SECONDS)
            counts.update(reply["counts"])
            violations += [f"errors: {error}" for error in reply["errors"]]
        if plan.terms:
            probe = switcher.call("probe_sales", names=names, timeout=SHOP_BOUND)
        else:
            probe = switcher.call("probe", names=names, kind=plan.workload, timeout=BOUND)
        alive = [number for number in workers if number not in killed]
        for number in alive:
            most = before[number]["threads"] + MORE_THREADS
            held = "sale:" if plan.terms else run
            workers[number].send("leftovers", run=held, threads=most, timeout=BOUND)
        ends = [
            workers[number].receive() | {"actor": f"process {number}", "before": before[number]}
            for number in alive
        ]
        found = judge_sales(plan, folder, probe["sales"]) if plan.terms else judge(plan, folder)
        violations += [*found.violations, *judge_ends(plan, probe, ends)]
        seconds = time.monotonic() - started
        return Run(plan, violations, found.undecided, dict(counts), injector.proofs, seconds)


def _switched(switcher: WorkerProcess, plan: Plan, end: float) -> dict[str, int]:
    """Switch the policy to the other backend and back until the end of the work; count that.

    A shop also changes the write strategy, which is exact without a lock.
    """
    switches, rng = 0, random.Random(plan.seed)
    time.sleep(SWITCH_AFTER)
    while plan.switches and time.monotonic() < end - 0.5:
        mode = rng.choice(("conditional", "fenced")) if plan.terms else ""
        if switcher.call("switch", alias=(OTHER, ALIAS)[switches % 2], mode=mode)["ok"]:
            switches += 1
        else:
            time.sleep(0.2)
    return {"switches": switches} if plan.switches else {}
