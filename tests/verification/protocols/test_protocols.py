"""Each variant keeps or breaks its promises as declared, and each part of a model is used."""

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from loadtest.scenarios import SCENARIOS
from tests.loadtest.lab import verify
from verification.protocols import PROTOCOLS
from verification.protocols.search import TEXTS, Moves, Protocol, report

UNBROKEN = [
    ("switch", "stock conserved", {"quantity": 0}),
    ("queue", "stock conserved", {"quantity": 0}),
    ("queue", "never oversold", {"orders": (0, 1)}),
    ("queue", "one outcome", {"orders": (0,), "quantity": 0, "rejected": frozenset({0})}),
]
"""Promises that no variant breaks, each with a state that does."""


def variants(name: str) -> dict[str, Any]:
    found: dict[str, Any] = TEXTS[name]["variants"]
    return found


def rows() -> Iterator[dict[str, Any]]:
    """Search all variants."""
    for name, protocol in PROTOCOLS.items():
        seen: set[str] = set()

        def moves(
            rules: Any, s: Any, protocol: Protocol = protocol, seen: set[str] = seen
        ) -> Moves:
            for move in protocol.moves(rules, s):
                seen.add(move[0])
                yield move

        yield from report(protocol._replace(moves=moves))
        assert seen == {*TEXTS[name]["actions"], *TEXTS[name]["faults"]}


@pytest.mark.long
def test_variant_breaks_the_promise_that_it_declares() -> None:
    """Each action of a model is possible in some state of some variant."""
    for row in rows():
        assert row["is_expected"], row
        assert bool(row["trace"]) is bool(row["breaks"])
        assert row["breaks"] or row["states"] > 500
        for step in row["trace"]:
            assert step["text"].endswith(".")
            assert "frozenset" not in step["text"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_rule_is_changed_by_a_variant(name: str) -> None:
    changed = {rule for one in variants(name).values() for rule in one.get("rules", {})}
    assert changed == TEXTS[name]["rules"].keys()
    for variant in variants(name).values():
        assert variant.keys() <= {"about", "rules", "breaks", "scenario"}
        if "scenario" in variant:  # the same failure on real servers
            assert variant["breaks"]
            assert variant["scenario"] in SCENARIOS


def test_every_promise_can_be_broken() -> None:
    for name, promise, values in UNBROKEN:
        rules = SimpleNamespace(**TEXTS[name]["rules"])
        holds, start = PROTOCOLS[name].promises[promise], PROTOCOLS[name].start(rules)
        assert holds(rules, start)
        assert not holds(rules, start._replace(**values))
    without = {
        (name, promise)
        for name, protocol in PROTOCOLS.items()
        for promise in {**protocol.promises, **protocol.promises_at_rest}
        if promise not in {one.get("breaks") for one in variants(name).values()}
    }
    assert without == {(name, promise) for name, promise, _ in UNBROKEN}


def test_command_reports_verdicts_and_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    found, code = verify("models", "switch")
    found = {row["variant"]: row for row in found["models"]}
    assert (code, found["drained"]["verdict"]) == (0, "no violation")
    broken = found["forced-naive"]
    assert broken["verdict"] == f'breaks "never oversold" at step {len(broken["trace"])}'
    assert broken["trace"][-1] == {"action": "Write", "text": "B writes the quantity 0."}
    monkeypatch.setitem(variants("switch")["drained"], "breaks", "one holder")
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("verify", "models", "switch", stdout=out)
    assert "\n  1. The switcher takes the time and sends the announcement.\n  2. " in out.getvalue()
    with pytest.raises(CommandError, match="Did you mean"):
        verify("models", "swich")
