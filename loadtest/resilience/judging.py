"""What people were told, and whether that and the books are in order."""

from collections import Counter
from typing import Any

from loadtest.resilience.shop import Shop, Told
from shop.administration.audit import audit_sale

BOUGHT = (201, 303)
PATIENCE = 60.0
Report = dict[str, Any]


def verdict(breaches: list[str], **facts: Any) -> Report:
    """The end of a report."""
    return {**facts, "breaches": breaches, "verdict": "failed" if breaches else "ok"}


def bought(told: list[Told], since: float) -> list[float]:
    """When purchases ended that began later."""
    return [one.ended for one in told if one.began > since and one.status in BOUGHT]


def statuses(told: list[Told]) -> dict[str, int]:
    """How often which was told."""
    return {str(status): n for status, n in sorted(Counter(one.status for one in told).items())}


def sums(shop: Shop, told: list[Told]) -> list[str]:
    """What is wrong with the books and the answers when all is over."""
    audit = audit_sale(sale=shop.sale)
    won = sum(one.status in BOUGHT for one in told)
    breaches = list(audit.breaches)
    if audit.held + audit.sold < won:
        breaches.append(f"{won} were told that they had bought, {audit.held + audit.sold} have")
    odd = sorted({one.status for one in told if one.status >= 500} - {503})
    return breaches + [f"an answer was {status}" for status in odd]
