"""The part of a running load test's page that is replaced four times a second."""

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from loadtest.charts import curves
from loadtest.kernel.faults import FAULTS
from loadtest.load import report
from loadtest.models import LabRun

STARTS = {
    "worker": gettext_noop("A Celery worker takes the test"),
    "process": gettext_noop("The test's own process starts"),
    "database": gettext_noop("The test's own database starts"),
    "redis": gettext_noop("The test's own Redis starts"),
    "redlock": gettext_noop("Five Redis masters for RedLock start"),
    "zookeeper": gettext_noop("ZooKeeper starts"),
    "tables": gettext_noop("The tables are created"),
    "buyers": gettext_noop("The buyers connect"),
}


def starting(run: LabRun) -> list[str]:
    """Return what has been started so far, in words; the last is still on its way."""
    took = ["process", *run.progress.get("starting", [])] if run.state != run.State.WAITING else []
    return [_(STARTS[one]) for one in ["worker", *took]]


def context(run: LabRun) -> dict[str, Any]:
    """Return the template context of a load test that has no report yet."""
    over, now = run.progress.get("over", []), run.progress.get("run")
    drawn = list(over)
    if over and now is None:  # between two runs, the last one stays
        *over, now = over
        buyers_of = run.plan["buyers"]
        served = 0 if now["verdict"] == "not-run" else buyers_of
        now = {**now, "requested": "none", "buyers": buyers_of, "served": served}
    alias = now["backend"] if now and now["served"] < now["buyers"] else "none"
    buttons = [
        (name, FAULTS[name].button, FAULTS[name].applies(alias, run.plan["store"]))
        for name in offered(run)
    ]
    ready = ",".join(name for name, _button, is_ready in buttons if is_ready)
    several = run.plan["disciplines"] != ["naive"]
    so_far = report.sentence(over, several=several) if over else ""
    why = next((report.explain(one) for one in drawn if one.get("lost_updates")), "")
    found = {"so_far": so_far, "why": why, "oversold": "", "buttons": buttons, "ready": ready}
    if now is None:
        return {**found, "starting": starting(run)}
    # The curve of a guard is that of its run under way, or else of its worst run.
    if run.progress.get("run"):
        guard = now["backend"], now["discipline"]
        others = [one for one in over if (one["backend"], one["discipline"]) != guard]
        drawn = [*others, now]
    return {
        **found,
        "requested": FAULTS[run.requested_fault or now["requested"]].button,
        "under_way": report.so_far(now, several=several),
        "now": report.run_of(now, run.plan["repeats"], several=several),
        "curve": curves.sold_over_time(drawn, scale=max(one["sold"] for one in [*over, now])),
        "oversold": "{backend}-{discipline}-{repeat}".format(**now) if now["oversold"] else "",
        **curves.buyers(now),
    }


def offered(run: LabRun) -> list[str]:
    """Return the faults that can hit a lock of this load test; a scenario has its own."""
    backends, store = run.plan.get("backends", ()), run.plan.get("store", "")
    return [
        name for name, fault in FAULTS.items() if any(fault.applies(one, store) for one in backends)
    ]
