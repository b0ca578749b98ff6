"""The rows of the fault suite, and what its tests inject.

    @pytest.mark.faults(row=5, backend="redis", xf=True)
    def test_a_crash_without_persistence(...)

`make faults` runs the marked tests and prints a table of the rows. Injectors count themselves
(`devservers.base.injected_faults`); a marked test that passes without an injected fault fails.
Where the test itself is the fault, as with a second release, the marker names it: `fired="..."`.
`backend` names the backend where no parameter of the test does; `xf` marks a test that expects two
holders and fails without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devservers.base import injected_faults

SUITE: dict[str, dict[str, Any]] = {
    "test_stopped_holder_keeps_its_lock_or_learns_of_the_loss": {"row": 1, "xf": True},
    "test_killed_holder_is_replaced": {"row": 3},
    "test_tokens_grow_through_a_failover": {"row": 4},
    "test_tokens_grow_through_a_restart": {"row": 5},
    "test_clock_set_back_does_not_prolong_a_lease": {"row": 8},
    "test_clock_set_ahead_ends_no_session": {"row": 8},
    "test_minority_that_is_down_stops_no_lock": {"row": 9},
    "test_lost_replies_are_resolved_by_the_owner": {"row": 10},
    "test_acquisition_that_arrives_late_is_harmless": {"row": 11},
    "test_release_without_a_connection_frees_the_lock": {"row": 11},
    "test_end_of_the_session_is_the_loss_of_the_lock": {"row": 12},
    "test_waiter_survives_a_lost_connection": {"row": 13},
    "test_stopped_store_fails_in_bounded_time": {"row": 17},
    "test_fair_lock_is_granted_in_order": {"row": 23, "fired": "contenders in line"},
    "test_other_claims_cannot_change_the_grant": {"row": 24, "fired": "foreign, double release"},
    "test_expired_claim_cannot_change_its_successor": {"row": 24, "fired": "release after expiry"},
}
"""The tests of `locking.testing`, which knows no rows: the arguments of their markers."""
SLACK = 5.0
"""Seconds that a loaded machine may add to a promised time; `lab endure` prints the figures."""


def rows() -> dict[str, tuple[str, str]]:
    """Return fault and guarantee of each row of docs/reference/faults.md."""
    page = (Path(__file__).parent.parent / "docs/reference/faults.md").read_text()
    _heading, *found = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]+) \|$", page, re.M)
    return {row: (fault, guarantee) for row, fault, guarantee in found}


def record_fault(description: str) -> None:
    """Count a fault that the test itself has injected."""
    injected_faults[description] += 1


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of the public contract where a backend of the library runs them."""
    function = getattr(item, "function", None)
    if getattr(function, "__module__", "").startswith("locking.testing"):
        facts = SUITE.get(item.originalname)  # type: ignore[attr-defined]
        if facts and getattr(getattr(item, "cls", None), "is_real", False):
            item.add_marker(pytest.mark.faults(**facts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("faults")
    if marker is None:
        return (yield)
    injected_faults.clear()
    try:
        result = yield
    finally:
        if own := marker.kwargs.get("fired"):
            record_fault(own)
        injected = dict(+injected_faults)
        facts = {
            "row": str(marker.kwargs["row"]),
            "backend": marker.kwargs.get("backend", ""),
            "xf": marker.kwargs.get("xf", False),
            "test": item.nodeid,
            "fired": injected,
        }
        item.user_properties.append(("faults", facts))
    assert injected, "no fault was injected"
    return result


# --- the report of a run ----------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-report", type=Path, help="where the marked tests' facts go (JSON)")


_facts: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the facts of all tests in the controlling process."""
    for name, facts in report.user_properties:
        if name == "faults" and isinstance(facts, dict):
            known = _facts.setdefault(report.nodeid, {**facts, "verdict": "ok", "seconds": 0.0})
            known["seconds"] += report.duration if report.when == "call" else 0
            if report.failed:
                known["verdict"] = "failed"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the rows, and write the facts of each test, if a report is asked for."""
    file = config.getoption("--faults-report")
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(list(_facts.values()), indent=1))
    for row, (fault, guarantee) in rows().items():
        if runs := [facts for facts in _facts.values() if facts["row"] == row]:
            held = sum(facts["verdict"] == "ok" for facts in runs)
            injected = sum(sum(facts["fired"].values()) for facts in runs)
            counts = f"{held} of {len(runs)} ok, {injected} faults injected"
            terminalreporter.line(f"{row:>2}  {fault}: {guarantee} ({counts})")
    terminalreporter.line(f"Each test, with what it injected: {file}")
