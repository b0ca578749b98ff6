"""The contract rejects each wrong backend by the test that says why, and no correct one."""

import os
import re
import subprocess
import sys

import pytest

from tests.locking.backends.contract_mutants import MUTANTS

FILE = "tests/locking/backends/contract_mutants.py"


def run(*tests: str, seconds: float) -> dict[str, str]:
    """Run tests, of which each waits so long for what should happen; return their outcomes."""
    outer = ("PYTEST_", "DJANGO_SETTINGS_MODULE")  # this pytest's own
    env = {key: value for key, value in os.environ.items() if not key.startswith(outer)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfEp", "-p", "no:cacheprovider", *tests],
        env={**env, "LOCK_TEST_TIMEOUT": str(seconds)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert not re.search(r"^ERROR", done.stdout, re.M), done.stdout + done.stderr
    found = re.findall(r"^(FAILED|PASSED) \S+::(\w+)::(\w+)", done.stdout, re.M)
    return {f"{cls}::{test}": outcome for outcome, cls, test in sorted(found, reverse=True)}


@pytest.mark.long
def test_contract_rejects_each_mutant() -> None:
    tests = [f"Test_{one.__name__}::{test}" for one, by in MUTANTS.items() for test in by]
    found = run(*(f"{FILE}::{test}" for test in tests), seconds=1)
    assert {test: found.get(test) for test in tests} == dict.fromkeys(tests, "FAILED")


@pytest.mark.long
def test_contract_accepts_correct_backends() -> None:
    found = run(*(f"{FILE}::Test_{name}Backend" for name in ("Memory", "Session")), seconds=20)
    assert len(found) > 60
    assert {*found.values()} == {"PASSED"}
