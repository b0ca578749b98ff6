"""`lab endure` on a small scale: restarts under load and failed stores."""

import io
import json
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from loadtest.cli.endure import EnduranceParams
from loadtest.kernel.params import PlanError
from loadtest.load.http.client import DISCONNECTED
from loadtest.resilience import slow
from loadtest.resilience.processes import Celery
from loadtest.resilience.recovery import DURATIONS, WAYS
from loadtest.resilience.shop import Reply, ledger_breaches
from locking import locks
from tests.shop.making import a_sale


def endure(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    with suppress(SystemExit):  # 1, when the verdict is not ok
        call_command("lab", "endure", *words, "--json", stdout=out)
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def test_units_for_which_there_are_not_two_buyers_are_refused() -> None:
    """Or else the experiment would fail once its servers run."""
    with pytest.raises(PlanError, match="--stock must be between 10 and 50,000"):
        EnduranceParams(stock=50_001)


@pytest.mark.long
def test_restarts_lose_nothing(tmp_path: Path) -> None:
    # A restart takes 4 s: the rush must not be over before the second.
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- lab_endure_restarts -->\n<!-- /lab_endure_restarts -->\n")
    report = endure("restarts", "--attempts=20000", "--stock=200", f"--write={page}")
    assert report["verdict"] == "ok", report["breaches"]
    assert json.dumps(report, indent=1) in page.read_text()
    assert (report["orders"], report["restarts"]) == (200, 2)
    assert report["answers"][DISCONNECTED]["count"] > 0
    assert report["jobs"]["turned_away"] > 0


@pytest.mark.long
def test_purchases_resume_before_the_lease_ends() -> None:
    """The limit of the command itself is too strict for a busy machine."""
    report = endure("recovery", "--rounds=1")
    assert not [one for one in report["breaches"] if "were allowed" not in one]
    rows = report["interruptions"]
    assert {(row["do"], row["seconds"]) for row in rows} == {*product(WAYS, DURATIONS)}
    assert all(row["max"] < locks["redis"].ttl / 2 for row in rows)
    assert {row["store"] for row in report["blows"]} == {"database", "zookeeper"}


def test_purchase_that_hangs_since_before_the_fault_was_recorded_is_a_breach() -> None:
    """All buyers may wait for a silent store: then none begins a purchase while it lasts."""
    views = [Reply(200, 10.1, 10.2)]
    phase = {"store": "redis", "fault": "slow", "began": 10.0, "threads": 1}
    hung = [Reply(201, 9.99, 16.5)]
    breaches = slow.judge({**phase}, views, hung, 1, 0)
    assert breaches == ["redis slow: buying took up to 6.51 s"]
    before = [Reply(201, 3.0, 9.9), Reply(201, 10.1, 10.3)]
    assert slow.judge({**phase}, views, before, 1, 0) == []


@pytest.mark.parametrize(("ended", "is_allowed"), [(15.9, False), (16.1, True), (16.6, False)])
def test_request_that_meets_both_faults_has_the_limit_of_an_unavailable_store(
    ended: float, is_allowed: bool
) -> None:
    phase = {"store": "redis", "fault": "slow", "began": 10.0, "threads": 1}
    buys = [Reply(503, min(14.0, ended - 2.2), ended)]
    assert (slow.judge(phase, [Reply(200, 10.1, 10.2)], buys, 1, 0) == []) == is_allowed


def test_load_of_which_every_purchase_was_refused_is_a_breach(db: None) -> None:
    """A shop that answers 503 for hours keeps its ledger."""
    assert ledger_breaches(a_sale(), 0) == ["no purchase was acknowledged"]


def test_killed_worker_leaves_no_file(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not end in time is killed; its pool has a folder for temporary files."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Celery("worker") as worker:
        worker.kill()
    assert list(tmp_path.iterdir()) == []
