"""A failing plan is reduced to the faults that it needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from verification.torture.reduce import reduce


@pytest.mark.parametrize("needed", [[], [3], [0, 4], [1, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_only_the_needed_faults_are_kept(needed: list[int]) -> None:
    tried: list[Sequence[int]] = []

    def fails(numbers: Sequence[int]) -> int:
        tried.append(numbers)
        return int(set(needed) <= set(numbers))

    assert reduce(6, fails) == needed
    assert len(tried) <= 42


def test_the_smallest_failing_candidate_is_kept_when_tries_run_out() -> None:
    assert reduce(64, lambda numbers: int(63 in numbers), most=1) == list(range(32, 64))
