"""The part of a running load test's page that is replaced four times a second."""

from typing import Any

from loadtest.charts import curves
from loadtest.charts.buyers import buyers
from loadtest.kernel.faults import FAULTS
from loadtest.load import report
from loadtest.models import LabRun


def context(run: LabRun) -> dict[str, Any]:
    """Return the template context of a load test that has no report yet."""
    over, now = run.progress.get("over", []), run.progress.get("run")
    if over and now is None:  # between two runs, the last one stays
        *over, now = over
        buyers_of = run.plan["buyers"]
        served = 0 if now["verdict"] == "not-run" else buyers_of
        now = {**now, "requested": "none", "buyers": buyers_of, "served": served}
    found = {"so_far": report.sentence(over) if over else "", "oversold": "", "offered": ""}
    if now is None:
        return found
    # The curve of a guard is that of its run under way, or else of its worst run.
    guard = now["backend"], now["discipline"]
    others = [one for one in over if (one["backend"], one["discipline"]) != guard]
    return {
        **found,
        "buttons": [(name, FAULTS[name].button) for name in offered(run)],
        "offered": "-".join(offered(run)),
        "requested": FAULTS[run.requested_fault or now["requested"]].button,
        "under_way": report.so_far(now),
        "curve": curves.sold_over_time([*others, now]),
        "oversold": "{backend}-{discipline}-{repeat}".format(**now) if now["oversold"] else "",
        **buyers(now),
    }


def offered(run: LabRun) -> list[str]:
    """Return the faults that can hit the lock that is running now."""
    if not (now := run.progress.get("run")):
        return []
    store = run.plan["store"]
    return [name for name, fault in FAULTS.items() if fault.applies(now["backend"], store)]
