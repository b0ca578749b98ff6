"""`manage.py lab run`: real processes on private stores, with the controls that must oversell."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devservers.faults.waiting import until
from tests.loadtest.lab import check_sum, family, guards, lab

MANAGE = Path(__file__).parents[3] / "manage.py"
PATIENCE = 120.0
"""Seconds until a run has started its processes or ended them. The start imports Django twice and
migrates a database: over 30 s on a machine with ten busy processes per core."""


@pytest.mark.parametrize("store", ["sqlite", "mariadb", "postgresql"])
def test_controls_oversell_and_locks_sell_exactly_the_stock(store):
    names = ["none", "process", "database", "redis"]
    report, code = lab("run", *guards(*names), f"--store={store}")
    found = {run["backend"]: (run["verdict"], run["undersold"]) for run in report["runs"]}
    assert found == {
        "none": ("oversold", 0),
        "process": ("oversold", 0),
        "database": ("ok", 0),
        "redis": ("ok", 0),
    }, report["runs"]
    assert [run["sold"] for run in report["runs"]][2:] == [50, 50]
    assert code == 0
    for run in report["runs"][:2]:
        check_sum(run)
        available = run["stock"] - run["lost_updates"]["counted"]
        assert f"50 initial != {available} available" in run["why"]


def test_keys_of_the_report_and_its_files(tmp_path, monkeypatch):
    """A Celery worker of the shop may start it: the shop's metrics do not count it."""
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(metrics))
    heads = {"html": b"<!doctype", "csv": b"backend,", "png": b"\x89PNG", "svg": b"<svg"}
    files = [f"--{suffix}={tmp_path / suffix}" for suffix in heads]
    options = ("--backend=none", "--buyers=20", "--stock=5", "--discipline=conditional")
    report, code = lab("run", *options, *files)
    for suffix, head in heads.items():
        assert (tmp_path / suffix).read_bytes().lstrip().startswith(head)
    page = (tmp_path / "html").read_text()
    assert [one for one in ("src=", "<link", "url(http") if one in page] == [], "works offline"
    assert code == 0
    assert report["settings"]["think_ms"] == 5.0
    assert {"python", "django", "database", "cores"} <= report["versions"].keys()
    (run,) = report["runs"]
    promised = "backend discipline stock attempts sold oversold undersold orders_per_second"
    assert {*promised.split(), "wait_ms", "verdict", "why"} <= run.keys()
    assert run["wait_ms"].keys() == {"p50", "p95", "p99"}
    assert (run["sold"], run["attempts"]) == (5, 20)
    assert run["answers"] == {"order": 5, "sold_out": 15}
    assert list(metrics.iterdir()) == []


def test_verdict_without_the_server_is_not_run(monkeypatch, tmp_path):
    """The experiment starts its servers itself, in a process that finds no programs here."""
    customize = "from devservers import programs\nprograms._PATH = ''\n"
    (tmp_path / "sitecustomize.py").write_text(customize)
    monkeypatch.syspath_prepend(tmp_path)
    report, code = lab("run", *guards("none", "process"), "--store=postgresql")
    assert [run["verdict"] for run in report["runs"]] == ["not-run", "not-run"]
    assert "apt-get install" in report["runs"][0]["why"]
    assert code == 1


def test_paused_holder_oversells_unless_the_row_refuses_its_write():
    strategies = ("--discipline=naive", "--discipline=conditional")
    options = (*guards("none", "redis"), *strategies, "--fault=pause-holder", "--threads=2")
    report, code = lab("run", *options)
    runs = {(run["backend"], run["discipline"]): run for run in report["runs"]}
    assert code == 0, [(guard, run["verdict"]) for guard, run in runs.items()]
    oversold = runs["redis", "naive"]
    assert oversold["verdict"] == "oversold"
    check_sum(oversold)
    assert oversold["checked"]["facts"]["faults"] == 1
    assert runs["redis", "conditional"]["sold"] == 50
    (at, word), (back, resumed) = oversold["marks"]
    assert (word, resumed) == ("pause-holder", "resumed")
    assert back - at > 2.9
    before = [sold for when, sold in oversold["sold_at"] if when <= at]
    assert 20 <= max(before) <= 33, "about half of the stock"


def test_killed_holder_is_replaced_and_its_buyers_are_served():
    report, code = lab("run", *guards("none", "redis"), "--fault=kill-holder", "--processes=2")
    killed = report["runs"][1]
    assert code == 0, killed["why"]
    assert (killed["sold"], killed["checked"]["facts"]["faults"]) == (50, 1)
    assert sum(killed["answers"].values()) == 200
    assert killed["wait_ms"]["p99"] > 1000, "the others waited for the dead holder's lease"


def test_fault_that_did_not_fire_is_not_run():
    report, code = lab("run", "--backend=redis", "--fault=kill-holder", "--buyers=5", "--at=0.5")
    (run,) = report["runs"]
    assert (run["verdict"], run["why"]) == ("not-run", "kill-holder did not fire")
    assert code == 1


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks into /proc")
@pytest.mark.parametrize(
    ("signum", "asked", "most"),
    [
        # A Redis, the runner and four workers.
        (signal.SIGTERM, ["run", "--backend=redis", "--repeats=100"], 6),
        # A Redis, the runner and two worker processes.
        (signal.SIGINT, ["scenario", "holder-paused"], 4),
    ],
)
def test_interrupted_run_leaves_no_process_or_file(signum, asked, most, tmp_path):
    command = [sys.executable, str(MANAGE), "lab", *asked]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=-1) as run:
        try:
            until(lambda: len(family(tmp_path)) >= most, "the processes", PATIENCE)
            run.send_signal(signum)
            assert b"Interrupted" in run.communicate(timeout=PATIENCE)[1]
            assert run.returncode == 130
        finally:
            run.kill()
    until(lambda: not family(tmp_path), "their end", PATIENCE)
    assert list(tmp_path.iterdir()) == []
