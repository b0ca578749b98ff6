"""Run a plan: start private stores, execute the plan in them, and return the report."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from loadtest.load.fault_plan import FAULTS, OUTAGE_SECONDS
from loadtest.load.plan import Plan
from loadtest.load.stores import PrivateStores
from loadtest.load.verdict import not_run, with_controls

Report = dict[str, Any]
Progress = Callable[[dict[str, Any]], object]


def run(plan: Plan, progress: Progress = lambda event: None) -> Report:
    """Return the report as `lab run --json` prints it; `progress` is called with every event."""
    settings = asdict(plan)
    report: Report = {"settings": settings, "versions": {}, "runs": []}
    with PrivateStores(plan.store, plan.servers) as stores:
        for server in ("database", FAULTS[plan.fault].server):
            if server in stores.missing:
                why = stores.missing[server]
                report["runs"] = [{**names, **not_run(plan, why)} for names in plan.guards()]
                return report
        missed = 0
        asked = {"plan": settings, "missing": stores.missing, "ports": stores.ports}
        progress({"event": "plan", "runs": plan.runs, "buyers": plan.buyers, "stock": plan.stock})
        for event in stores.run_experiment("run", asked):
            progress(event)
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "inject":
                missed += not stores.kill(event["server"], back_after=OUTAGE_SECONDS)
            elif event["event"] == "run":
                if missed:
                    event["run"] |= not_run(plan, f"{plan.fault} met no server that was up")
                report["runs"].append(event["run"])
                missed = 0
    report["runs"] = with_controls(report["runs"])
    return report
