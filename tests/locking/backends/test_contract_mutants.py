"""The contract rejects wrong backends (FINDINGS E8), each in a pytest of its own."""

import os
import re
import subprocess
import sys

import pytest

from tests.locking.backends.contract_mutants import LOCAL, ON_REDIS
from tests.locking.backends.shared_mutants import MUTANTS

FILE = "tests/locking/backends/contract_mutants.py"
SHARED_FILE = "tests/locking/backends/shared_mutants.py"


def failures(name: str, file: str = FILE) -> list[str]:
    """Return the tests that fail for a mutant, up to the first."""
    outer = ("PYTEST_", "DJANGO_SETTINGS_MODULE")  # this pytest's own
    env = {key: value for key, value in os.environ.items() if not key.startswith(outer)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"{file}::Test{name}", "-m", "not long"],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert " passed" in done.stdout or " failed" in done.stdout, done.stdout
    return re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.M)


@pytest.mark.long
@pytest.mark.parametrize("name", [one.__name__ for one in (*LOCAL, *ON_REDIS)])
def test_contract_rejects(name: str) -> None:
    assert failures(name)


@pytest.mark.long
def test_contract_accepts_the_backend_without_a_mutation() -> None:
    assert failures("Control") == []


@pytest.mark.long
@pytest.mark.parametrize("name", [one.__name__ for one in MUTANTS])
def test_contract_rejects_shared_lock(name: str) -> None:
    assert failures(name, SHARED_FILE)


@pytest.mark.long
def test_contract_accepts_shared_locks_without_a_mutation() -> None:
    assert failures("SharedControl", SHARED_FILE) == []
