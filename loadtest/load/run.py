"""Run a plan: start private stores, execute the plan in them, and return the report."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from devservers.faults.waiting import FaultFailed
from loadtest.kernel.session import Experiment
from loadtest.kernel.topology import Topology
from loadtest.load.plan import Plan
from loadtest.load.verdict import with_controls

Report = dict[str, Any]
Progress = Callable[[dict[str, Any]], str | None]


def run(plan: Plan, progress: Progress = lambda event: None) -> Report:
    """Return the report as `lab run --json` prints it.

    `progress` is called with every event, and may return the name of a fault to inject.
    """
    report: Report = {"settings": asdict(plan), "versions": {}, "runs": []}
    topology = Topology(database=plan.store, servers=plan.servers, runs_without=True)
    requested: list[str] = []
    progress({"event": "plan", "runs": plan.runs, "buyers": plan.buyers, "stock": plan.stock})
    with Experiment("loadtest.load.runner", report["settings"], topology) as experiment:
        for event in experiment.events():
            if fault := progress(event):
                requested.append(fault)
                if event["event"] == "progress":
                    sale = "{backend}-{discipline}-{repeat}".format(**event)
                    with suppress(FaultFailed):  # it has ended meanwhile
                        experiment.write_line(json.dumps({"fault": fault, "sale": sale}))
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "run":
                injected = Counter(fault["name"] for fault in event["run"]["faults"])
                injected -= Counter({plan.fault: plan.strikes})
                for name in (Counter(requested) - injected).elements():  # the run ended first
                    event["run"]["faults"].append({"name": name, "at": None, "proof": ""})
                report["runs"].append(event["run"])
                requested.clear()
    report["runs"] = with_controls(report["runs"])
    return report
