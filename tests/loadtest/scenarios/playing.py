"""Plays a file's scenarios once, for all of its tests."""

from __future__ import annotations

from typing import Any

import pytest

from devservers import ServerMissing
from loadtest.scenarios import SCENARIOS, run, tell
from tests.fault_rows import record_fault, record_outcome

Halves = tuple[dict[str, Any], dict[str, Any]]


def played(*names: str) -> Any:
    """A module's fixture: the results by name."""

    @pytest.fixture(scope="module")
    def results() -> dict[str, dict[str, Any]]:
        results = {result["name"]: result for result in run(names)["scenarios"]}
        for result in results.values():
            if "is not installed" in result["why"]:
                raise ServerMissing(result["why"].split()[0])
        return results

    return results


def facts(result: dict[str, Any]) -> Halves:
    """What was measured of the broken and of the repaired half, of a scenario that is all right."""
    assert (result["verdict"], result["why"]) == ("ok", "")
    broken, repaired = result["halves"]
    record_fault(f"{result['name']}, broken and repaired")
    for half in (broken, repaired):
        told = half["facts"]
        record_outcome("two believed" if told["overlaps"] else "one believed")
        if "sold" in told:
            record_outcome(f"{told['sold']} sold of {told['stock']}")
    assert (broken["is_repaired"], repaired["is_repaired"]) == (False, True)
    sentences = tell(SCENARIOS[result["name"]], result)
    assert len(sentences) == 3
    assert not any("%" in sentence for sentence in sentences)
    return broken["facts"], repaired["facts"]


def sold_twice_then_once(result: dict[str, Any]) -> Halves:
    """Two are sold of one, and the repair sells one."""
    broken, repaired = facts(result)
    assert (broken["stock"], broken["sold"], broken["oversold"]) == (1, 2, 1)
    assert (repaired["stock"], repaired["sold"], repaired["oversold"]) == (1, 1, 0)
    return broken, repaired
