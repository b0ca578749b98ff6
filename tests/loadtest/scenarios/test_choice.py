"""Recommendations of a lock: over all combinations, none lacks what the project needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import chain, combinations, product
from pathlib import Path

import pytest

from loadtest.bench.locks import properties
from loadtest.bench.locks.properties import FAILURES, capabilities, outcome
from loadtest.scenarios import SCENARIOS
from loadtest.scenarios.choice import HARMLESS, LOCKS, Project, choose
from tests.test_commands import parser_of


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def projects() -> Iterator[Project]:
    """Yield every combination of up to three stores, and of needs."""
    for stores, survive, quick, fence in product(
        (one for one in subsets(tuple(LOCKS)) if 0 < len(one) <= 3),
        subsets(tuple(FAILURES)),
        (False, True),
        (False, True),
    ):
        yield Project(stores=stores, survive=survive, is_quick=quick, has_fence=fence)


def test_no_recommendation_lacks_a_needed_property() -> None:
    """Judged by the declarations themselves, in other words than those of the choice."""
    found, refused = 0, 0
    for project in projects():
        result = choose(project)
        if result["recommended"] is None:
            refused += 1
            assert set(result["rejected"]) == set(capabilities())
            assert all(result["rejected"].values())
            continue
        found += 1
        alias = result["recommended"]["lock"]
        declared = project.locks()[alias]
        assert any(alias in LOCKS[store] for store in project.stores)
        assert declared.exclusion == "machines" or alias == "process"
        assert declared.wakes_waiters or not project.is_quick
        fenced = project.has_fence and declared.fencing
        if alias != "process":
            assert fenced or "paused" not in project.survive
        if "failover" in project.survive:
            assert (
                alias == "process"
                or declared.survives_minority
                or (fenced and declared.tokens_outlive_failover)
            )
        if "clock" in project.survive:
            assert fenced or not declared.expires
        assert alias not in result["rejected"]
        assert {*result["rejected"], alias} == set(capabilities())
    assert found > 1000
    assert refused > 300


def test_no_lock_is_refused_that_would_do() -> None:
    """Each rejected lock of the stores lacks a need, or another one was better."""
    for project in projects():
        result = choose(project)
        if result["recommended"] is None:
            assert project.fit() == []
            for declared in project.locks().values():
                missing = [one for one in project.survive if outcome(declared, one) not in HARMLESS]
                assert missing or not declared.wakes_waiters


@pytest.mark.parametrize("alias", [one for one in capabilities() if one != "none"])
def test_proposed_runs_exist(alias: str) -> None:
    """Each command is accepted by the parser, and its scenario exists."""
    stores = tuple(store for store, aliases in LOCKS.items() if alias in aliases)[:1]
    project = Project(stores=stores, survive=(), is_quick=False, has_fence=True)
    commands = []
    for survive, quick in (((), False), ((), True), *(((one,), False) for one in FAILURES)):
        changed = Project(stores=stores, survive=survive, is_quick=quick, has_fence=True)
        result = choose(changed)["recommended"]
        if result is None:
            continue
        assert {run["need"] for run in result["runs"]} == {
            "race",
            *survive,
            *(("waiters",) if quick else ()),
        }
        commands += [run["command"] for run in result["runs"]]
    assert project.fit()
    for command in commands:
        program, name, *arguments = shlex.split(command)
        assert program == "manage.py"
        options = parser_of(name).parse_args(arguments)
        assert set(getattr(options, "names", ())) <= set(SCENARIOS)


def test_figures_are_those_of_the_page_or_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = {"survive": ("paused",), "is_quick": False, "has_fence": True}
    found = choose(Project(stores=("redis",), **asked))["recommended"]
    row = f"| **redis** | {found['cost']['pairs/s']} |"
    assert row in properties.MEASURED.read_text()
    assert choose(Project(stores=("sqlite",), **asked))["recommended"]["cost"] == {}
    assert choose(Project(stores=("mysql",), **asked))["recommended"]["cost"]
    monkeypatch.setattr(properties, "MEASURED", tmp_path / "absent.md")
    assert choose(Project(stores=("redis", "mysql"), **asked))["recommended"]["cost"] == {}
