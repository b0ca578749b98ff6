"""The verdict on a run, from its rows, and the expectation for its guard."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from inventory.models import WriteStrategy
from loadtest.kernel.faults import FAULTS
from loadtest.load.buyers import Outcome
from loadtest.load.plan import Plan
from shop.administration.audit import StockAudit
from shop.errors import Overloaded, QueueFull, ServiceUnavailable

CURVE_POINTS = 60
UNDECIDED = Overloaded.code, QueueFull.code, ServiceUnavailable.code
"""The last answers to buyers who gave up while nothing was decided."""
Verdict = str
""""ok", "oversold", "undersold" or "not-run"."""


def expected(
    plan: Plan,
    *,
    exclusion: str,
    discipline: str,
    outlived: bool = False,
    faults: Collection[str] = (),
) -> Verdict | None:
    """Return the verdict that the guard promises; None if several are possible.

    `outlived`: the lock expires while a holder is stopped. `faults`: all that were injected.
    """
    at_once = min(plan.buyers, plan.processes * plan.threads)
    is_alone = at_once == 1 or (exclusion == "process" and plan.processes == 1)
    if is_alone or discipline != WriteStrategy.NAIVE:
        return "ok"
    if exclusion == "machines":
        hit = [FAULTS[name] for name in {plan.fault, *faults}]
        if any(fault.server for fault in hit):
            return None  # a lock whose server loses its data may be granted twice
        is_paused = any(fault.holder == "stop" for fault in hit)
        if not (is_paused and outlived and plan.processes > 1):
            return "ok"
        if FAULTS[plan.fault].holder != "stop":
            return None  # on request, perhaps when the stock was almost sold
    # If there is a unit for each buyer, nothing is oversold.
    return "oversold" if plan.buyers > plan.stock else None


def with_controls(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs; if a control did not oversell, the runs beside it prove nothing."""
    failed = {
        (run["discipline"], run["repeat"]): run["backend"]
        for run in runs
        if run["expected"] == "oversold" and run["verdict"] in ("ok", "undersold")
    }
    found = []
    for run in runs:
        control = failed.get((run["discipline"], run["repeat"]))
        if control and run["verdict"] == "ok":
            why = f"the control ({control}) did not oversell: nothing is proved"
            run = {**run, "verdict": "not-run", "why": why}
        found.append(run)
    return found


def curve(answers: Sequence[Outcome], started: float) -> list[tuple[float, int]]:
    """Return points of (seconds since the start, units sold), thinned out for a chart."""
    ends = sorted(max(0.0, answer.ended - started) for answer in answers if answer.kind == "order")
    step = max(1, len(ends) // CURVE_POINTS)
    points = [(round(at, 3), n) for n, at in enumerate(ends, 1) if n % step == 0 or n == len(ends)]
    return [(0.0, 0), *points]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of them do not exceed; 0 without values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def figures(
    plan: Plan, audit: StockAudit, answers: Sequence[Outcome], started: float
) -> dict[str, Any]:
    """Return the figures and the verdict of one run."""
    orders = audit.sold + audit.held
    wanted = min(plan.stock, plan.buyers)
    kinds = Counter(answer.kind for answer in answers)
    seconds = curve(answers, started)[-1][0]
    waits = [(answer.ended - answer.began) * 1000 for answer in answers]
    unknown = sum(kinds[code] for code in UNDECIDED)
    verdict, why = sold_verdict(audit, wanted=wanted, confirmed=kinds["order"], unknown=unknown)
    return {
        "stock": plan.stock,
        "attempts": sum(answer.sends for answer in answers),
        "sold": orders,
        "oversold": audit.oversold,
        "undersold": max(0, wanted - orders),
        "orders_per_second": round(orders / seconds, 1) if seconds else 0.0,
        "wait_ms": {
            f"p{share}": round(percentile(waits, share / 100), 1) for share in (50, 95, 99)
        },
        "answers": dict(sorted(kinds.items())),
        "verdict": verdict,
        "why": why,
    }


def sold_verdict(
    audit: StockAudit, *, wanted: int, confirmed: int, unknown: int = 0
) -> tuple[Verdict, str]:
    """Return "ok", "oversold" or "undersold", and the reason.

    `wanted` units could be sold, and `confirmed` buyers were told that they had bought. As many as
    `unknown` gave up while nothing was decided: some may have an order.
    """
    orders, why = audit.sold + audit.held, list[str](audit.breaches)
    if audit.oversold:
        return "oversold", "; ".join(why)
    if orders < wanted:
        why.append(f"{orders} orders, {wanted} units could be sold")
    elif not confirmed <= orders <= confirmed + unknown or why:
        # Every buyer was served, but units appeared or vanished.
        why.append(f"{confirmed} buyers were told that they had bought, {orders} orders exist")
    if not why:
        return "ok", f"{orders} orders, and the ledger is consistent"
    is_short = orders < max(wanted, confirmed) or audit.lost
    return "undersold" if is_short else "oversold", "; ".join(why)


def not_run(plan: Plan, why: str) -> dict[str, Any]:
    """Return the report of a run that could not take place."""
    return {
        "stock": plan.stock,
        **dict.fromkeys(("attempts", "sold", "oversold", "undersold", "orders_per_second"), 0),
        "wait_ms": dict.fromkeys(("p50", "p95", "p99"), 0.0),
        **{"answers": {}, "sold_at": [], "marks": [], "faults": [], "lost_updates": None},
        "checked": {"breaches": [], "facts": {}},
        **{"expected": None, "verdict": "not-run", "why": why},
    }
