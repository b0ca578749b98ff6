"""The part of a running load test's page that is replaced four times a second."""

from typing import Any

from django.utils.translation import gettext as _

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
    buttons = [(name, FAULTS[name].button) for name in offered(run)]
    several = len(run.plan["disciplines"]) > 1
    so_far = report.sentence(over, several=several) if over else ""
    found = {"so_far": so_far, "oversold": "", "buttons": buttons}
    if now is None:
        return found
    # The curve of a guard is that of its run under way, or else of its worst run.
    guard = now["backend"], now["discipline"]
    others = [one for one in over if (one["backend"], one["discipline"]) != guard]
    return {
        **found,
        "requested": FAULTS[run.requested_fault or now["requested"]].button,
        "under_way": report.so_far(now, several=several),
        "now": _("%(guard)s, run %(repeat)s of %(repeats)s")
        % {**now, "guard": report.guard_of(now), "repeats": run.plan["repeats"]},
        "curve": curves.sold_over_time([*others, now]),
        "oversold": "{backend}-{discipline}-{repeat}".format(**now) if now["oversold"] else "",
        **buyers(now),
    }


def offered(run: LabRun) -> list[str]:
    """Return the faults that can hit a lock of this load test."""
    backends, store = run.plan["backends"], run.plan["store"]
    return [
        name for name, fault in FAULTS.items() if any(fault.applies(one, store) for one in backends)
    ]
