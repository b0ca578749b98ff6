"""Torture finds each defect that was put back, with plans that pass without it."""

import os

import pytest

from tests.verification.torture.mutants import MUTANTS, seconds_until_found
from verification.torture.plan import generate
from verification.torture.runner import Torture

TRIED = list(MUTANTS) if "ALL_MUTANTS" in os.environ else ["F2", "F5"]
"""`make verify WHAT=mutants` has time for all, `make verify WHAT=long` for two."""


@pytest.mark.long
@pytest.mark.parametrize("mutant", TRIED)
def test_torture_finds(mutant: str) -> None:
    backend, workload, before, _ = MUTANTS[mutant]
    _seconds, seed, found = seconds_until_found(mutant, seed=before)
    assert found
    with Torture() as torture:
        assert torture.run(generate(seed, backend, (workload,))).violations == []
