"""Scenarios of the textbooks' locks, on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fault_rows import SLACK
from tests.loadtest.scenarios.outcomes import facts, results_of

results = results_of(
    "setnx-without-expiry",
    "crash-between-setnx-and-expire",
    "delete-successors-lock",
    "mysql-row-left-by-crash",
)


@pytest.mark.parametrize("name", ["setnx-without-expiry", "crash-between-setnx-and-expire"])
def test_a_key_without_an_end(results: dict[str, Any], name: str) -> None:
    broken, repaired = facts(results[name])
    assert broken["pttl"] == -1, "the server says: never"
    assert (broken["granted"], repaired["granted"]) == (0, 1)
    assert broken["waited"] >= 2 * broken["ttl"] - 0.1
    assert repaired["waited"] < repaired["ttl"] + SLACK


def test_delete_successors_lock(results: dict[str, Any]) -> None:
    broken, repaired = facts(results["delete-successors-lock"])
    assert (broken["third_granted"], repaired["third_granted"]) == (1, 0)
    assert (broken["lease_overlaps"], repaired["lease_overlaps"]) == (1, 0)
    assert repaired["release_refused"] == 1


def test_mysql_row_left_by_crash(results: dict[str, Any]) -> None:
    broken, repaired = facts(results["mysql-row-left-by-crash"])
    assert broken["rows"] == 1
    assert (broken["granted"], repaired["granted"]) == (0, 1)
    assert broken["waited"] < 2, "it cannot wait"
    assert repaired["waited"] < repaired["ttl"] + SLACK
