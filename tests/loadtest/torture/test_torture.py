"""Seconds of `lab torture` on two backends, its controls, and minutes of it in `make faults`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from loadtest.cli.torture import plans
from loadtest.torture.plan import generate
from loadtest.torture.runner import Torture
from tests.loadtest.lab import lab
from tests.loadtest.torture.mutants import seconds_until_found

RUNS = 2 * int(os.environ.get("ROUNDS", "1"))
SEED = int(os.environ.get("SEED", "42"))
ALONE = "process", "mysql_session", "postgresql_session", "redis", "redlock", "zookeeper"
BACKENDS = {
    "database on SQLite": "database",
    "database on MariaDB": "database-mariadb",
    "database on PostgreSQL": "database-postgresql",
    **dict(zip(ALONE, ALONE, strict=True)),
}


def tortured(*options: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the report, the row of its only backend, and the exit code."""
    report, code = lab("torture", *options)
    (row,) = report["backends"]
    return report, row, code


@pytest.mark.parametrize(("backend", "seed"), [("redis", 2), ("database", 3)])
def test_fixed_seeds_keep_the_promises(backend: str, seed: int) -> None:
    options = f"--backend={backend}", f"--seed={seed}", "--workload=mutex", "--runs=1"
    report, row, code = tortured(*options)
    assert (report["failures"], code) == ([], 0)
    assert row["grants"] > 0
    assert sum(row["faults"].values()) > 0


def test_the_control_without_a_lock_fails_and_can_be_repeated(tmp_path: Path) -> None:
    options = "--backend=none", "--seed=2", "--workload=mutex", "--runs=1", "--tries=1"
    report, _row, code = tortured(*options)
    assert code == 1
    (failure,) = report["failures"]
    assert failure["violations"][0].startswith("exclusion: ")
    assert (failure["only"], failure["reproduced"]) == ([], "1 of 1")
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    asked = {"replay": file, "backend": ["none"], "workload": ["mutex"], "seed": 2, "only": None}
    (repeated,) = plans(asked)
    assert repeated == generate(2, "none", ("mutex",))
    assert list(plans({**asked, "replay": None, "only": ","})) == [repeated.only([])]


@pytest.mark.parametrize(
    "wrong", ["--only=9", "--only=x", "--replay=/nowhere", "--backend=mysql", "--minutes=-1"]
)
def test_wrong_arguments_are_refused(wrong: str) -> None:
    with pytest.raises(CommandError):
        lab("torture", wrong)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_faults_break_no_promise(backend: str) -> None:
    options = f"--backend={BACKENDS[backend]}", f"--seed={SEED}", f"--runs={RUNS}", "--minutes=9"
    report, row, code = tortured(*options)
    assert (report["failures"], code) == ([], 0)
    assert row["grants"] > 0


@pytest.mark.long
def test_a_release_that_is_not_repeated_is_found() -> None:
    """And the seed that finds it passes without the mutant."""
    _seconds, seed, found = seconds_until_found("F2", limit=300)
    assert found[0].startswith("liveness: ")
    with Torture() as torture:
        assert torture.run(generate(seed, "redis", ("mutex",))).violations == []
