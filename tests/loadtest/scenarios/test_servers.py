"""Scenarios of servers that fail, and what many waiters cost them, on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loadtest.scenarios.outcomes import facts, results_of, sold_twice_then_once

results = results_of(
    "failover-before-replication",
    "redlock-amnesia",
    "redlock-clock-jump",
    "herd-against-queue",
    "polling-against-push",
)


@pytest.mark.faults(row=4, backend="redis, redlock", xf=True)
def test_failover_before_replication(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["failover-before-replication"])
    assert broken["lease_overlaps"] == 1, "both leases were in force"
    assert repaired["lease_overlaps"] == 0
    assert repaired["second_told"] in ("busy", "store_down")
    assert repaired["second_told_later"] == "sold_out"


@pytest.mark.faults(row=6, backend="redlock", xf=True)
def test_redlock_amnesia(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["redlock-amnesia"])
    assert broken["lease_overlaps"] == 1
    assert repaired["lease_overlaps"] == 0
    assert repaired["second_told"] in ("busy", "store_down")
    assert repaired["second_told_later"] == "sold_out"


@pytest.mark.faults(row=7, backend="redlock", xf=True)
def test_redlock_clock_jump(results: dict[str, Any]) -> None:
    broken, repaired = sold_twice_then_once(results["redlock-clock-jump"])
    assert broken["jump"] > broken["ttl"]
    assert broken["lease_overlaps"] == repaired["lease_overlaps"] == 1, (
        "nothing in Redis repairs it"
    )
    assert (broken["refused"], repaired["refused"]) == (0, 1)


def test_herd_against_queue(results: dict[str, Any]) -> None:
    """Counted by the server: 6 + 5 + 4 + 3 + 2 + 1 wake-ups against six."""
    broken, repaired = facts(results["herd-against-queue"])
    assert broken["wakes"] == 21
    assert repaired["wakes"] == 6
    assert repaired["in_order"] == 1
    assert repaired["requests"] < broken["requests"]


def test_polling_against_push(results: dict[str, Any]) -> None:
    broken, repaired = facts(results["polling-against-push"])
    assert broken["commands"] > 8 * broken["waiters"]
    assert repaired["each"] <= 8
    assert broken["commands"] > 2 * repaired["commands"]
