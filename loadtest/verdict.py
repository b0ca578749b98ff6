"""What a run showed, from counting rows, and what its guard had promised."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from loadtest.buyers import Answer
from loadtest.plan import Plan
from locking.models import Discipline
from shop.audit import StockAudit

Verdict = Literal["ok", "oversold", "undersold", "not-run"]


def expected(plan: Plan, *, exclusion: str, discipline: str) -> Verdict | None:
    """What the guard promises; None where either may happen, because nobody has to go without."""
    is_alone = plan.contenders == 1 or (exclusion == "process" and plan.processes == 1)
    if is_alone or exclusion == "machines" or discipline != Discipline.NAIVE:
        return "ok"
    return "oversold" if plan.buyers > plan.stock else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 when there are none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def judge(
    plan: Plan,
    audit: StockAudit,
    answers: Sequence[Answer],
    started: float,
    promise: Verdict | None,
) -> dict[str, Any]:
    """One run of the report, except for its names."""
    sold = audit.sold + audit.held
    undersold = max(0, min(plan.stock, plan.buyers) - sold)
    ends = [answer.ended for answer in answers if answer.kind == "order"]
    seconds = max(ends, default=started) - started
    waits = [(answer.ended - answer.began) * 1000 for answer in answers]
    kinds = Counter(answer.kind for answer in answers)
    verdict, why = _verdict(plan, audit, undersold, kinds["order"])
    return {
        "stock": plan.stock,
        "attempts": sum(answer.sends for answer in answers),
        "sold": sold,
        "oversold": audit.oversold,
        "undersold": undersold,
        "orders_per_second": round(sold / seconds, 1) if seconds else 0.0,
        "wait_ms": {
            f"p{share}": round(percentile(waits, share / 100), 1) for share in (50, 95, 99)
        },
        "answers": dict(sorted(kinds.items())),
        "expected": promise,
        "verdict": verdict,
        "why": why,
    }


def _verdict(plan: Plan, audit: StockAudit, undersold: int, told: int) -> tuple[Verdict, str]:
    sold = audit.sold + audit.held
    books = "; ".join(audit.breaches)
    if audit.oversold:
        return "oversold", books
    if undersold:
        return "undersold", books or f"{sold} sold of {plan.stock} to {plan.buyers} buyers"
    if sold != told:
        return "undersold", f"{told} buyers were told that they had bought, {sold} orders exist"
    if audit.breaches:
        # Nobody had to go without, but pieces appeared or vanished.
        return ("undersold" if audit.lost else "oversold"), books
    return "ok", f"sold {sold} of {plan.stock}, and the books add up"


def not_run(plan: Plan, why: str) -> dict[str, Any]:
    """The report of a run that could not take place."""
    return {
        "stock": plan.stock,
        "attempts": 0,
        "sold": 0,
        "oversold": 0,
        "undersold": 0,
        "orders_per_second": 0.0,
        "wait_ms": {"p50": 0.0, "p95": 0.0, "p99": 0.0},
        "answers": {},
        "expected": None,
        "verdict": "not-run",
        "why": why,
    }
