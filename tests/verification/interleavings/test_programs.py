"""`manage.py verify interleavings`: a sample on real servers, and what it reports."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from loadtest.game.levels import LEVELS
from loadtest.kernel.terminal import Terminal
from loadtest.management.commands.lab import Command
from tests.loadtest.lab import verify
from verification.cli.interleavings import COMMAND, keep
from verification.interleavings.programs import PROGRAMS

SAMPLE = 30
"""Interleavings of each program: the flaws of the textbook's locks show up within these."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    report, code = verify("interleavings", "--limit", str(SAMPLE))
    surprises = [row["name"] for row in report["programs"] if not row["is_expected"]]
    assert (surprises, code) == (["redlock/clock-jump"], 1), "its flaw needs more runs"
    return {row["name"]: row for row in report["programs"]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flaw_is_found_and_nothing_else(found: dict[str, Any], name: str) -> None:
    row, program = found[name], PROGRAMS[name]
    if not program.breaks:
        assert (row["violation"], row["violations"], row["trace"]) == ("", 0, [])
        assert row["is_complete"] or row["runs"] == SAMPLE
    elif name != "redlock/clock-jump":
        assert row["violation"] == program.breaks
        assert 0 < row["first"] <= SAMPLE
        assert row["violations"] < row["runs"], "the flaw needs a certain order"


def test_each_level_of_the_game_has_its_programs() -> None:
    for name in LEVELS:
        assert PROGRAMS[f"game/{name}-broken"].breaks
        assert not PROGRAMS[f"game/{name}"].breaks


def test_text_has_counts_and_the_shortest_trace(found: dict[str, Any]) -> None:
    out = io.StringIO()
    COMMAND.describe(Terminal(Command(stdout=out)), {"programs": [*found.values()]})
    printed = out.getvalue()
    assert "recipes/setnx: 13 interleavings, deadlock in 4, first in run 2." in printed
    assert "\n  1. A: SETNX\n  2. A crashes\n  3. B: SETNX\n" in printed
    assert "lease ends" in found["recipes/set-px"]["trace"]


def test_counts_are_kept_for_the_game(
    tmp_path: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr("verification.cli.interleavings.RESULTS", results)
    whole = found["game/race"]
    part, flawed = found["game/owner"], whole | {"name": "game/commit", "first": 2}
    keep([whole, part, flawed, found["game/race-broken"]])
    assert json.loads(results.read_text()) == {"race": whole["runs"]}
    for options in ["--limit", "5"], ["--backend", "redis"]:
        with pytest.raises(CommandError, match="--keep needs all programs"):
            call_command("verify", "interleavings", *options, "--keep")
