"""The arguments and the verdict of `lab jobs`; tests/locking/jobs/test_worker_faults.py runs it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from loadtest.resilience.jobs import soak
from locking.jobs import runs
from locking.models import JobRun

MOMENTS = ["2026-11-21T12:00:00+00:00", "2026-11-21T12:00:01+00:00"]


@pytest.mark.parametrize(
    "wrong", [["--beats", "1"], ["--workers", "9"], ["--seconds", "0"], ["--seed", "-1"]]
)
def test_arguments_outside_the_limits_are_refused(wrong: list[str]) -> None:
    with pytest.raises(CommandError, match="must be between") as refused:
        call_command("lab", "jobs", *wrong)
    assert refused.value.returncode == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "ok"),
        ({"once": [1, 2]}, "doubled"),
        ({"once": [1, 0]}, "missing"),
        ({"control": [1, 1]}, "not-run"),
        ({"injected": Counter()}, "not-run"),
        ({"attempts": 1}, "not-run"),
    ],
)
def test_verdict(changes: dict[str, Any], verdict: str, monkeypatch) -> None:
    found = {"once": [1, 1], "control": [2, 3], "injected": Counter(killed=1), "attempts": 2}
    found |= changes
    monkeypatch.setattr(
        soak,
        "effects",
        lambda task: Counter(dict(zip(MOMENTS, found[task], strict=True))),
    )
    runs.register("once", [], {}, soak.datetime.fromisoformat(MOMENTS[0]))
    JobRun.objects.update(attempts=found["attempts"], duplicates=2)
    report = soak._report(MOMENTS, found["injected"], "attempt 1 was taken over")
    assert report["verdict"] == verdict
    assert (report["turned_away"], report["late_refused"]) == (2, 1)
