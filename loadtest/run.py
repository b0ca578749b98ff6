"""Runs a plan: private stores, the director in them, and its report."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from loadtest.plan import Plan
from loadtest.processes import STOP_SECONDS, tethered
from loadtest.stores import Stores
from loadtest.verdict import not_run

Report = dict[str, Any]
Progress = Callable[[dict[str, Any]], object]


class BrokeOff(RuntimeError):
    """The load test met something nobody foresaw; the message ends with its log."""


def run(plan: Plan, progress: Progress = lambda event: None) -> Report:
    """The report of the plan, as `lab run --json` prints it; `progress` hears every event."""
    report: Report = {"settings": plan.settings(), "versions": {}, "runs": []}
    with Stores(plan) as stores:
        if "database" in stores.missing:
            report["runs"] = _none_of_them(plan, stores.missing["database"])
            return report
        for event in _direct(plan, stores):
            progress(event)
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "run":
                report["runs"].append(event["run"])
    return report


def _none_of_them(plan: Plan, why: str) -> list[dict[str, Any]]:
    return [
        {
            "backend": backend,
            "discipline": discipline,
            "repeat": repeat,
            **not_run(plan, why),
        }
        for repeat in range(1, plan.repeats + 1)
        for discipline in plan.disciplines
        for backend in plan.backends
    ]


def _direct(plan: Plan, stores: Stores) -> Iterator[dict[str, Any]]:
    log = stores.folder / "director.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            tethered([sys.executable, "-m", "loadtest"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=stores.environ,
            cwd=stores.folder,
            text=True,
            start_new_session=True,  # Ctrl-C is for us, and we end it
        ) as director,
        _ended(director),
    ):
        assert director.stdin is not None
        assert director.stdout is not None
        json.dump({"plan": plan.settings(), "missing": stores.missing}, director.stdin)
        director.stdin.close()
        for line in director.stdout:
            event = json.loads(line)
            if event["event"] == "end":
                return
            yield event
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise BrokeOff(f"the load test broke off:\n{tail}")


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    """No process is left, however the block ends."""
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
