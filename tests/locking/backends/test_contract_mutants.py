"""The contract rejects wrong backends (FINDINGS E8), each in a pytest of its own."""

import os
import re
import subprocess
import sys

import pytest

from tests.locking.backends.contract_mutants import LOCAL, ON_REDIS

FILE = "tests/locking/backends/contract_mutants.py"


def failures(name: str) -> list[str]:
    """Return the tests that fail for a mutant, up to the first."""
    outer = ("PYTEST_", "DJANGO_SETTINGS_MODULE")  # this pytest's own
    env = {key: value for key, value in os.environ.items() if not key.startswith(outer)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"{FILE}::Test{name}"],
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
