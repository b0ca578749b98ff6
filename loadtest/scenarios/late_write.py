"""What most scenarios are: one buyer is late, and another buys behind its back."""

from collections.abc import Callable
from typing import Any

from loadtest.scenarios.testbed import Stage
from shop.administration.audit import audit_sale

PATIENCE = 20.0
THINK = 0.3
"""Seconds between the second one's look and its write, where a shop checks the payment."""


def behind_anothers_back(
    stage: Stage,
    *,
    fault: str = "wait",
    meanwhile: Callable[[], object] = lambda: None,
    afterwards: Callable[[], object] = lambda: None,
    timeout: float = 5.0,
    **how: Any,
) -> dict[str, Any]:
    """A buyer has looked and is struck before it writes; another wants the same last piece.

    `how` goes to the first purchase. A second one that was told "busy" tries again at the end;
    `timeout` is how long it waits for the lock.
    """
    sale = stage.sale()
    first, second = stage.actor("buyer A"), stage.actor("buyer B", timeout=timeout)
    first.start("buy", sale=sale.pk, user=stage.customer(), fault=fault, **how)
    first.struck()
    meanwhile()
    other = stage.customer()
    told = second.call("buy", sale=sale.pk, user=other, think=THINK)
    afterwards()
    first.on()
    late = first.answer()
    again = told
    if told.get("error") in ("busy", "store_down"):
        again = second.call("buy", sale=sale.pk, user=other, patience=PATIENCE)
    audit = audit_sale(sale=sale)
    return {
        "stock": audit.initial,
        "sold": audit.held,
        "oversold": audit.oversold,
        "refused": audit.stale_writes_refused,
        "broke": audit.oversold > 0,
        "second_waited": round(told["seconds"] - (0 if "error" in told else THINK), 2),
        "second_told": told.get("error", "order"),
        "second_told_later": again.get("error", "order"),
        "first_told": late.get("error", "order"),
    }
