"""Run the scenarios of a test module once, for all of its tests."""

from __future__ import annotations

from typing import Any

import pytest

from devservers import ServerMissing
from loadtest.charts import timeline
from loadtest.scenarios import SCENARIOS, run
from tests.fault_rows import record_fault, record_outcome
from tests.loadtest.charts.drawn import contradictions, misplaced

Variants = tuple[dict[str, Any], dict[str, Any]]


def results_of(*names: str) -> Any:
    """Return a module's fixture: the results by name."""

    @pytest.fixture(scope="module")
    def results() -> dict[str, dict[str, Any]]:
        results = {result["name"]: result for result in run(names)["scenarios"]}
        for result in results.values():
            if "is not installed" in result["why"]:
                raise ServerMissing(result["why"].split()[0])
        return results

    return results


def facts(result: dict[str, Any]) -> Variants:
    """Return the facts of the broken and the repaired variant of a scenario that succeeded."""
    assert (result["verdict"], result["why"]) == ("ok", "")
    broken, repaired = result["halves"]
    record_fault(f"{result['name']}, broken and repaired")
    for variant in (broken, repaired):
        found = variant["facts"]
        record_outcome("two believed" if found["overlaps"] else "one believed")
        if "sold" in found:
            record_outcome(f"{found['sold']} sold of {found['stock']}")
    assert (broken["is_repaired"], repaired["is_repaired"]) == (False, True)
    sentences = SCENARIOS[result["name"]].describe(result)
    assert len(sentences) == 3
    length = timeline.length_of((broken, repaired))
    for variant in (broken, repaired):
        assert contradictions(variant["events"]) == []
        assert misplaced(timeline.draw(variant, length=length)) == []
    assert not any("%" in sentence for sentence in sentences)
    return broken["facts"], repaired["facts"]


def sold_twice_then_once(result: dict[str, Any]) -> Variants:
    """Assert that the broken variant sold two units of one and the repaired variant one."""
    broken, repaired = facts(result)
    assert (broken["stock"], broken["sold"], broken["oversold"]) == (1, 2, 1)
    assert (repaired["stock"], repaired["sold"], repaired["oversold"]) == (1, 1, 0)
    return broken, repaired
