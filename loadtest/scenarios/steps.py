"""Sequences of steps that several scenarios run."""

import time
from collections.abc import Callable
from typing import Any

from devservers.faults.waiting import FaultFailed
from loadtest.scenarios.testbed import Testbed
from shop.administration.audit import audit_sale
from shop.models import Sale

LOCK = "sale:1"
HOLD_SECONDS = 0.2
"""Seconds for which the second process keeps the lock, so that the chart shows it."""
WAIT_SECONDS = 2.0
"""Seconds after which a waiter counts as waiting forever; twice the longest lease here."""
RETRY_SECONDS = 20.0
CHECK_SECONDS = 0.3
"""Seconds between the second buyer's read and its write, where a shop checks the payment."""


def buy_while_holder_stalls(
    testbed: Testbed,
    *,
    fault: str = "wait",
    meanwhile: Callable[[], object] = lambda: None,
    at_least: float = 0.0,
    timeout: float = 5.0,
    **options: Any,
) -> dict[str, Any]:
    """Stall a buyer between its read and its write while a second buyer wants the same last unit.

    `options` belong to the first purchase, which stalls for `at_least` seconds. A second purchase
    that was answered "busy" is sent again at the end; `timeout` is the number of seconds for which
    it waits for the lock.
    """
    sale = testbed.open_sale()
    first, second = testbed.worker("buyer A"), testbed.worker("buyer B", timeout=timeout)
    first.start("buy", sale=sale.pk, user=testbed.create_customer(), fault=fault, **options)
    first.wait_for_fault()
    stalled_at = time.monotonic()
    meanwhile()
    other = testbed.create_customer()
    answer = second.call("buy", sale=sale.pk, user=other, think=CHECK_SECONDS)
    time.sleep(max(0.0, stalled_at + at_least - time.monotonic()))
    stalled = time.monotonic() - stalled_at
    first.end_fault()
    late = first.receive()
    final = answer
    if answer.get("error") in ("busy", "store_down"):
        final = second.call("buy", sale=sale.pk, user=other, patience=RETRY_SECONDS)
    return {
        **sold(sale),
        "second_waited": round(answer["seconds"] - (0 if "error" in answer else CHECK_SECONDS), 2),
        "second_told": answer.get("error", "order"),
        "second_told_later": final.get("error", "order"),
        "stalled": round(stalled, 2),
        "first_told": late.get("error", "order"),
    }


def sold(sale: Sale) -> dict[str, Any]:
    """Return what the audit found."""
    audit = audit_sale(sale=sale)
    return {
        "stock": audit.initial,
        "sold": audit.held,
        "oversold": audit.oversold,
        "refused": audit.stale_writes_refused,
        "broke": audit.oversold > 0,
    }


def crash_and_wait(
    testbed: Testbed,
    alias: str,
    *,
    ttl: float,
    at: str = "",
    timeout: float = WAIT_SECONDS,
    names: tuple[str, str] = ("buyer A", "buyer B"),
) -> dict[str, Any]:
    """Kill a holder, or a process at the fail point `at`, and let another wait for its lock."""
    holder, waiter = (testbed.worker(name) for name in names)
    if at:
        holder.start("acquire", alias=alias, name=LOCK, timeout=5, ttl=ttl, fault="kill", at=at)
        holder.wait_for_fault()
        testbed.note("kept", lane=names[0])  # the store keeps the dead process's lock
    else:
        if not holder.call("acquire", alias=alias, name=LOCK, timeout=5, ttl=ttl)["ok"]:
            raise FaultFailed("the lock was not free")
        testbed.kill(holder, names[0])
    answer = waiter.call("acquire", alias=alias, name=LOCK, timeout=timeout, ttl=ttl)
    if answer["ok"]:
        time.sleep(HOLD_SECONDS)
        waiter.call("release", name=LOCK)
    return {
        "ttl": ttl,
        "waited": round(answer["seconds"], 2),
        "granted": int(answer["ok"]),
        "broke": not answer["ok"],
    }
