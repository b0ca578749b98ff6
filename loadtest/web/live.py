"""The part of a running load test's page that is replaced four times a second."""

from math import ceil
from typing import Any

from django.utils.translation import gettext as _

from loadtest.charts import curves
from loadtest.kernel.faults import FAULTS
from loadtest.load import report
from loadtest.models import LabRun

MOST_SIGNS = 200


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


def buyers(run: dict[str, Any]) -> dict[str, Any]:
    """Return words, number and signs of each state of a buyer, and the buyers of a sign."""
    per_sign = ceil(run["buyers"] / MOST_SIGNS)
    states, end = [], 0
    for name, words, sign, count in (
        ("bought", _("bought"), "●", run["sold"] - run["oversold"]),
        ("over", _("bought beyond the stock"), "▲", run["oversold"]),
        ("refused", _("refused"), "✕", max(0, run["served"] - run["sold"])),
        ("waiting", _("waiting"), "○", run["buyers"] - max(run["served"], run["sold"])),
    ):
        begin, end = end, end + count
        signs = sign * (ceil(end / per_sign) - ceil(begin / per_sign))
        states.append({"name": name, "words": words, "sign": sign, "count": count, "signs": signs})
    return {"states": states, "per_sign": per_sign}
