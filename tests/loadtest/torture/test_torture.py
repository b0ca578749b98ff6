"""Seconds of `lab torture` on two backends, and a control in which there is no lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loadtest.lab import lab


@pytest.mark.parametrize(
    ("backend", "seed", "workload"),
    [("redis", 2, "mutex"), ("redis", 2, "fenced"), ("database", 3, "mutex")],
)
def test_seeds_keep_the_promises(backend: str, seed: int, workload: str) -> None:
    options = (f"--backend={backend}", f"--seed={seed}", f"--workload={workload}", "--runs=1")
    report, code = lab("torture", *options)
    assert report["failures"] == []
    (row,) = report["backends"]
    assert row["grants"] > 0
    assert sum(row["faults"].values()) > 0
    assert code == 0


def test_the_control_without_a_lock_fails_and_can_be_replayed(tmp_path: Path) -> None:
    options = ("--backend=none", "--seed=2", "--workload=mutex", "--runs=1", "--tries=1")
    report, code = lab("torture", *options)
    assert code == 1
    (failure,) = report["failures"]
    assert failure["violations"][0].startswith("exclusion: ")
    assert (failure["only"], failure["reproduced"]) == ([], "1 of 1")
