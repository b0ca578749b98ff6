"""The private stores of experiments, and the processes that use them."""

from pathlib import Path

import pytest

from loadtest.load.plan import Plan
from loadtest.load.run import run


def test_experiment_does_not_count_in_metrics_of_the_shop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Celery worker of the shop starts the lab's runs; its metrics stay the shop's own."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    plan = Plan(
        backends=("redis",),
        disciplines=("conditional",),
        buyers=6,
        stock=4,
        processes=1,
        threads=2,
    )
    row = run(plan)["runs"][0]
    assert (row["sold"], row["verdict"]) == (4, "ok"), "buyers took locks and bought"
    assert list(tmp_path.iterdir()) == []
