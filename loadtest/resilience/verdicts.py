"""Checks of the answers and of the ledger after an experiment."""

from collections import Counter
from itertools import takewhile
from typing import Any

from devservers.faults.waiting import until
from loadtest.resilience.shop import Reply, Shop
from shop.administration.audit import audit_sale

BOUGHT = (201, 303)
TIMEOUT = 60.0
Report = dict[str, Any]


def verdict(breaches: list[str], **facts: Any) -> Report:
    """Return the report: the facts, the breaches and "ok" if there is no breach."""
    return {**facts, "breaches": breaches, "verdict": "failed" if breaches else "ok"}


def purchases(replies: list[Reply], since: float) -> list[float]:
    """Return the end times of the purchases that began after `since`."""
    latest = takewhile(lambda one: one.ended > since, reversed(replies))
    return [one.ended for one in latest if one.began > since and one.status in BOUGHT]


def next_purchase(replies: list[Reply], since: float, ends_after: float = 0.0) -> float:
    """Wait for a purchase that began and ended after these times; return its end."""

    def ends() -> list[float]:
        return [end for end in purchases(replies, since) if end > ends_after]

    return min(until(ends, "a purchase", TIMEOUT))


def statuses(replies: list[Reply]) -> dict[str, int]:
    """Return the number of replies by status."""
    return {str(status): n for status, n in sorted(Counter(one.status for one in replies).items())}


def ledger_breaches(shop: Shop, replies: list[Reply]) -> list[str]:
    """Return the breaches of the final ledger and the answers that a shop must not send."""
    audit = audit_sale(sale=shop.sale)
    won = sum(one.status in BOUGHT for one in replies)
    breaches = list(audit.breaches)
    if audit.held + audit.sold < won:
        breaches.append(f"{won} purchases were confirmed, {audit.held + audit.sold} exist")
    wrong = sorted({one.status for one in replies if one.status >= 500} - {503})
    return breaches + [f"an answer was {status}" for status in wrong]
