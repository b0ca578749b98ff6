"""The search through the states of a model of two counters."""

from typing import Any, NamedTuple

import pytest

from verification.protocols import search as module
from verification.protocols.search import Moves, Protocol, Result, changed, search


class Counter(NamedTuple):
    count: int = 0


class State(NamedTuple):
    counters: tuple[Counter, ...] = (Counter(), Counter())
    is_broken: bool = False


def moves(rules: Any, s: State) -> Moves:
    for i, counter in enumerate(s.counters):
        if counter.count < rules.top:
            yield "Count", i, changed(s, i, count=counter.count + 1)
    if not s.is_broken:
        yield "Break", 0, s._replace(is_broken=True)


@pytest.fixture(autouse=True)
def _texts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "rules": {"top": 3},
        "actions": {"Count": "{name} counts {me.count} of {s.counters[0].count}."},
        "faults": {"Break": "It breaks."},
        "variants": {"small": {"about": "", "rules": {"top": 1}}, "usual": {"about": ""}},
    }
    monkeypatch.setitem(module.TEXTS, "counters", texts)


def found(variant: str = "usual", limit: int = 100, **promises: Any) -> Result:
    at_rest = {"rest": promises.pop("rest")} if "rest" in promises else {}
    protocol = Protocol("counters", lambda rules: State(), moves, promises, at_rest)
    return search(protocol, variant, limit=limit)


def test_all_states_are_visited_once_and_a_bound_is_never_a_pass() -> None:
    assert found(limit=32) == Result("no violation", 4 * 4 * 2)
    assert found("small") == Result("no violation", 2 * 2 * 2)
    assert found(limit=31) == Result("undecided", 31)
    assert found(limit=3, high=lambda r, s: s.counters[0].count < 3).verdict == "undecided"


def test_shortest_trace_is_found() -> None:
    result = found(low=lambda r, s: s.counters[1].count < r.top - 1)
    assert (result.verdict, result.promise) == ("violation", "low")
    assert result.trace == (("Count", "B counts 1 of 0."), ("Count", "B counts 2 of 0."))
    assert found(no=lambda r, s: False) == Result("violation", 1, "no", ())


def test_promises_at_rest_hold_where_only_faults_can_happen() -> None:
    """Both counters are full, whether it is broken or not."""
    result = found("small", rest=lambda r, s: s.is_broken)
    assert [action for action, _ in result.trace] == ["Count", "Count"]
    full = Counter(1)
    assert found("small", rest=lambda r, s: s.counters == (full, full)).verdict == "no violation"
