"""Torture finds each defect that was put back, with plans that pass without it."""

from __future__ import annotations

import os

import pytest

from loadtest.torture.plan import generate
from loadtest.torture.runner import Torture
from tests.loadtest.torture.mutants import FOUND_ON, SEEDS, seconds_until_found

QUICK = "B2", "F2"
"""`make long` has time for these, `make mutants` for all."""
SLOW = pytest.mark.skipif("MUTANTS_PAGE" not in os.environ, reason="make mutants runs it")


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant", [pytest.param(one, marks=[] if one in QUICK else [SLOW]) for one in SEEDS]
)
def test_torture_finds(mutant: str) -> None:
    backend, workload = FOUND_ON[mutant]
    _seconds, seed, found = seconds_until_found(mutant, seed=SEEDS[mutant])
    assert found
    with Torture() as torture:
        assert torture.run(generate(seed, backend, (workload,))).violations == []
