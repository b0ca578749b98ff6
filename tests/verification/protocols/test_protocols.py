"""Each variant keeps or breaks its promises as declared, and each part of a model is used."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.conf import settings

from loadtest.kernel import marked
from loadtest.scenarios import SCENARIOS
from verification.cli.models import COLUMNS, PART
from verification.protocols import PROTOCOLS
from verification.protocols.search import TEXTS, Moves, Protocol, report

VARIANTS = [(name, variant) for name in PROTOCOLS for variant in TEXTS[name]["variants"]]
PAGE = settings.BASE_DIR / "docs/explanation/models.md"
SECONDS = 60
"""Time of the processor for all searches."""
MORE_ORDERS = {"orders": (0, 1)}
ALSO_REJECTED = {"orders": (0,), "quantity": 0, "rejected": frozenset({0})}


class Searched(NamedTuple):
    rows: dict[tuple[str, str], dict[str, Any]]
    actions: dict[str, set[str]]
    seconds: float


@pytest.fixture(scope="module")
def searched() -> Searched:
    """Search all variants once, and note the actions that their states allow."""
    rows, actions = {}, {}
    started = time.process_time()
    for name, protocol in PROTOCOLS.items():
        seen: set[str] = set()

        def moves(
            rules: Any, s: Any, protocol: Protocol = protocol, seen: set[str] = seen
        ) -> Moves:
            for move in protocol.moves(rules, s):
                seen.add(move[0])
                yield move

        for row in report(protocol._replace(moves=moves)):
            rows[name, row["variant"]] = row
        actions[name] = seen
    return Searched(rows, actions, time.process_time() - started)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_variant_breaks_the_promise_that_it_declares(
    searched: Searched, name: str, variant: str
) -> None:
    row = searched.rows[name, variant]
    assert row["is_expected"], row["verdict"]
    assert bool(row["trace"]) is bool(row["breaks"])
    if not row["breaks"]:
        assert row["verdict"] == "no violation"
        assert row["states"] > 500
    for step in row["trace"]:
        assert step["text"].endswith(".")
        assert "frozenset" not in step["text"]


def test_both_kinds_of_variants_exist_for_each_protocol(searched: Searched) -> None:
    for name in PROTOCOLS:
        kinds = {bool(row["breaks"]) for (one, _), row in searched.rows.items() if one == name}
        assert kinds == {True, False}


def test_searches_take_less_than_a_minute(searched: Searched) -> None:
    assert searched.seconds < SECONDS


def test_page_has_the_counts_of_this_code(searched: Searched) -> None:
    before, after = marked.around(PAGE, PART)
    cells = [[str(row[column]) for column in COLUMNS] for row in searched.rows.values()]
    expected = f"{before}\n{marked.table(COLUMNS, cells)}\n{after}"
    assert PAGE.read_text() == expected, f"run: manage.py verify models --write {PAGE}"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_action_has_a_sentence_and_happens(searched: Searched, name: str) -> None:
    texts = TEXTS[name]
    assert searched.actions[name] == {*texts["actions"], *texts["faults"]}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_variants_change_known_rules(name: str) -> None:
    texts = TEXTS[name]
    for variant in texts["variants"].values():
        assert variant.get("rules", {}).keys() <= texts["rules"].keys()
        assert variant.keys() <= {"about", "rules", "breaks", "scenario"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_rule_is_changed_by_a_variant(name: str) -> None:
    texts = TEXTS[name]
    changed = {rule for one in texts["variants"].values() for rule in one.get("rules", {})}
    assert changed == texts["rules"].keys()


def test_linked_scenarios_exist() -> None:
    """The same failure on real servers; only a broken variant has one."""
    linked = [one for name, variant in VARIANTS if "scenario" in (one := variants(name)[variant])]
    assert len(linked) >= 5
    rows = re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", PAGE.read_text(), re.M)
    declared = {key: one for name in PROTOCOLS for key, one in variants(name).items()}
    assert dict(rows) == {key: one["scenario"] for key, one in declared.items() if one in linked}
    assert {one["scenario"] for one in linked} <= SCENARIOS.keys()
    assert all(one["breaks"] for one in linked)


def variants(name: str) -> dict[str, Any]:
    found: dict[str, Any] = TEXTS[name]["variants"]
    return found


@pytest.mark.parametrize(
    ("name", "promise", "values"),
    [
        ("purchase", "stock conserved", {"quantity": 0}),
        ("switch", "stock conserved", {"quantity": 0}),
        ("queue", "stock conserved", {"quantity": 0}),
        ("queue", "never oversold", MORE_ORDERS),
        ("queue", "one outcome", ALSO_REJECTED),
    ],
)
def test_promise_without_a_variant_can_be_broken(
    name: str, promise: str, values: dict[str, Any]
) -> None:
    protocol = PROTOCOLS[name]
    rules = SimpleNamespace(**TEXTS[name]["rules"])
    start = protocol.start(rules)
    assert protocol.promises[promise](rules, start)
    assert not protocol.promises[promise](rules, start._replace(**values))


def test_every_other_promise_is_broken_by_a_variant() -> None:
    without = {
        (name, promise)
        for name, protocol in PROTOCOLS.items()
        for promise in {**protocol.promises, **protocol.promises_at_rest}
        if promise not in {one.get("breaks") for one in variants(name).values()}
    }
    marks = test_promise_without_a_variant_can_be_broken.pytestmark  # type: ignore[attr-defined]
    assert without == {(name, promise) for name, promise, _ in marks[0].args[1]}
