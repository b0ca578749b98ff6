"""Torture finds each defect that was put back, with plans that pass without it."""

import os

import pytest

from tests.verification.torture.mutants import MUTANTS, plan_that_finds
from verification.torture.runner import Torture

TRIED = list(MUTANTS) if "ALL_MUTANTS" in os.environ else ["F2", "F5"]
"""`make verify WHAT=mutants` has time for all, `make verify WHAT=long` for two."""


@pytest.mark.long
@pytest.mark.parametrize("mutant", TRIED)
def test_torture_finds(mutant: str) -> None:
    plan = plan_that_finds(mutant)
    assert plan
    with Torture() as torture:
        assert torture.run(plan).violations == []
