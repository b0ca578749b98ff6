"""Run a plan: start private stores, execute the plan in them, and return the report."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from loadtest.load.fault_plan import FAULTS
from loadtest.load.plan import Plan
from loadtest.load.stores import PrivateStores
from loadtest.load.verdict import not_run, with_controls

Report = dict[str, Any]
Progress = Callable[[dict[str, Any]], str | None]


def run(plan: Plan, progress: Progress = lambda event: None) -> Report:
    """Return the report as `lab run --json` prints it.

    `progress` is called with every event, and may return the name of a fault to inject.
    """
    settings = asdict(plan)
    report: Report = {"settings": settings, "versions": {}, "runs": []}
    with PrivateStores(plan.store, plan.servers) as stores:
        for server in ("database", FAULTS[plan.fault].server):
            if server in stores.missing:
                why = stores.missing[server]
                report["runs"] = [{**names, **not_run(plan, why)} for names in plan.guards()]
                return report
        requested: list[str] = []
        asked = {"plan": settings, "missing": stores.missing, "ports": stores.ports}
        progress({"event": "plan", "runs": plan.runs, "buyers": plan.buyers, "stock": plan.stock})
        for event in stores.run_experiment("run", asked):
            if fault := progress(event):
                requested.append(fault)
                if event["event"] == "progress":
                    sale = "{backend}-{discipline}-{repeat}".format(**event)
                    stores.send({"fault": fault, "sale": sale})
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "inject" and FAULTS[event["fault"]].server:
                stores.inject(event["fault"])
            elif event["event"] == "run":
                injected = Counter(fault["name"] for fault in event["run"]["faults"])
                for name in (Counter(requested) - injected).elements():  # the run ended first
                    event["run"]["faults"].append({"name": name, "at": None, "proof": ""})
                report["runs"].append(event["run"])
                requested.clear()
    report["runs"] = with_controls(report["runs"])
    return report
