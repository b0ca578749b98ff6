"""Fail points: armed hooks and observers."""

from collections.abc import Mapping
from typing import Any

from locking.failpoints import add_observer, armed, reach, remove_observer


def test_hook_runs_only_while_armed() -> None:
    calls: list[str] = []
    with armed("here", lambda: calls.append("hook")):
        reach("here", fact=1)
        reach("elsewhere")
    reach("here")
    assert calls == ["hook"]


def test_observer_receives_names_and_facts_before_the_hook() -> None:
    seen: list[object] = []

    def observer(name: str, facts: Mapping[str, Any]) -> None:
        seen.append((name, dict(facts)))

    add_observer(observer)
    try:
        with armed("here", lambda: seen.append("hook")):
            reach("here", fact=1)
    finally:
        remove_observer(observer)
    reach("here", fact=2)
    assert seen == [("here", {"fact": 1}), "hook"]
