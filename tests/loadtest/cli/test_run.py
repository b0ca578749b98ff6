"""`manage.py lab run`: real processes on private stores, with the controls that must oversell."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devservers.faults.waiting import until
from devservers.programs import required
from loadtest.cli.run import COMMAND
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.management.commands.lab import Command
from tests.fault_rows import record_fault
from tests.loadtest.lab import check_sum, family, guards, lab

MANAGE = Path(__file__).parents[3] / "manage.py"
PATIENCE = 120.0
"""Seconds until a run has started its processes or ended them. The start imports Django twice:
over 30 s on a machine with ten busy processes per core."""
SIZE = "--buyers=100", "--stock=25"
FILES = {"html": b"<!doctype", "csv": b"backend,", "png": b"\x89PNG", "svg": b"<svg"}


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory):
    """The report of four guards, the exit code, and the folder of its files.

    A Celery worker of the shop may start a run: the shop's metrics do not count it.
    """
    folder = tmp_path_factory.mktemp("run")
    (folder / "metrics").mkdir()
    files = [f"--{suffix}={folder / suffix}" for suffix in FILES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder / "metrics"))
        report, code = lab("run", *guards("none", "process", "database", "redis"), *SIZE, *files)
    return report, code, folder


@pytest.mark.parametrize(
    "store", ["sqlite", "mariadb", pytest.param("postgresql", marks=pytest.mark.long)]
)
def test_controls_oversell_and_locks_sell_exactly_the_stock(store, request):
    if store == "sqlite":
        report, code, _ = request.getfixturevalue("on_sqlite")
    else:
        required({"mariadb": "mariadbd", "postgresql": "postgres"}[store])
        report, code = lab("run", *guards("none", "database"), *SIZE, f"--store={store}")
    for run in report["runs"]:
        if run["backend"] in ("none", "process"):
            assert (run["verdict"], run["undersold"]) == ("oversold", 0)
            check_sum(run)
            available = run["stock"] - run["lost_updates"]["counted"]
            assert f"25 initial ≠ {available} available" in run["why"]
        else:
            assert (run["verdict"], run["undersold"], run["sold"]) == ("ok", 0, 25), run["why"]
    assert code == 0


def test_keys_of_the_report_and_its_files(on_sqlite):
    report, _, folder = on_sqlite
    for suffix, head in FILES.items():
        assert (folder / suffix).read_bytes().lstrip().startswith(head)
    page = (folder / "html").read_text()
    assert [one for one in ("src=", "<link", "url(http") if one in page] == [], "works offline"
    assert report["settings"]["think_ms"] == 5.0
    assert {"python", "django", "database", "cores"} <= report["versions"].keys()
    run = report["runs"][-1]
    promised = "backend discipline stock attempts sold oversold undersold orders_per_second"
    assert {*promised.split(), "wait_ms", "verdict", "why"} <= run.keys()
    assert run["wait_ms"].keys() == {"p50", "p95", "p99"}
    assert run["answers"] == {"order": 25, "sold_out": 75}
    assert list((folder / "metrics").iterdir()) == []


def test_text_says_what_was_expected(on_sqlite):
    def printed(report):
        out = io.StringIO()
        COMMAND.describe(Terminal(Command(stdout=out, force_color=True)), report)
        return out.getvalue()

    report, *_ = on_sqlite
    text = printed(report)
    assert re.search(r"none \+ naive .*\x1b\[1;32moversold\x1b", text)
    assert re.search(r"redis \+ naive .*\x1b\[1;32mexact\x1b", text)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(map(len, plain.split("\n\n")[1].splitlines())) <= 80
    surprise = report["runs"][0] | {"expected": "ok"}
    assert not COMMAND.is_ok({"runs": [surprise]})
    assert re.search(r"\x1b\[1;31moversold: unexpected\x1b", printed({"runs": [surprise]})), "red"


def test_time_left_is_estimated_anew_for_each_step():
    """rich reports 0:00:00 for a bar that was full once, even if it is no longer."""
    with Bar(disable=True) as bar:
        for what, done in (("signing in", 40), ("sending", 0), ("sending", 10)):
            bar.draw(what, done, 40)
        assert bar.tasks[0].time_remaining != 0


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
    options = ("--backend=redis", *strategies, "--fault=pause-holder", "--threads=2")
    report, code = lab("run", *options)
    oversold, refused = report["runs"]
    assert code == 0, [(run["discipline"], run["why"]) for run in report["runs"]]
    assert oversold["verdict"] == "oversold"
    check_sum(oversold)
    assert oversold["checked"]["facts"]["faults"] == 1
    assert refused["sold"] == 50
    (at, word), (back, resumed) = oversold["marks"]
    assert (word, resumed) == ("pause-holder", "resumed")
    assert back - at > 2.9
    before = [sold for when, sold in oversold["sold_at"] if when <= at]
    assert 20 <= max(before) <= 33, "about half of the stock"


def test_killed_holder_is_replaced_and_its_buyers_are_served():
    report, code = lab("run", "--backend=redis", "--fault=kill-holder", "--processes=2")
    (killed,) = report["runs"]
    assert code == 0, killed["why"]
    assert (killed["sold"], killed["checked"]["facts"]["faults"]) == (50, 1)
    assert sum(killed["answers"].values()) == 200
    assert killed["wait_ms"]["p99"] > 1000, "the others waited for the dead holder's lease"


def test_fault_that_did_not_fire_is_not_run():
    report, code = lab("run", "--backend=redis", "--fault=kill-holder", "--buyers=5", "--at=0.5")
    (run,) = report["runs"]
    assert (run["verdict"], run["why"]) == ("not-run", "kill-holder did not fire")
    assert code == 1


@pytest.mark.long
@pytest.mark.faults(row=15)
@pytest.mark.parametrize(
    "backend", ["none", "database", "mysql_session", "redis", "redlock", "zookeeper"]
)
def test_row_15_mariadb_killed_five_times_under_load(backend):
    """SEED changes the order of the buyers, ROUNDS the number of sales (see `make faults`)."""
    rounds, seed = (os.environ.get(name, "1") for name in ("ROUNDS", "SEED"))
    options = ["--discipline=conditional", "--store=mariadb", "--fault=kill-database", "--at=0.1"]
    options += ["--strikes=5", f"--seed={seed}", f"--repeats={rounds}"]
    options += ["--buyers=100", "--stock=60", "--threads=3"]
    report, code = lab("run", f"--backend={backend}", *options)
    assert (code, len(report["runs"])) == (0, int(rounds))
    for run in report["runs"]:
        assert (run["verdict"], run["sold"]) == ("ok", 60), run["why"]
        assert (run["checked"]["breaches"], run["checked"]["facts"]["faults"]) == ([], 5)
        record_fault("kill-database × 5")


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks into /proc")
@pytest.mark.parametrize(
    ("words", "how"),
    [
        ("scenario holder-paused", signal.SIGHUP),
        ("survival --library=naive --fault=work --repeats=50", signal.SIGTERM),
    ],
    ids=["scenario", "survival"],
)
def test_interrupted_run_leaves_no_process_or_file(words, how, tmp_path):
    """Ctrl-C has the same handler; a closed terminal sends SIGHUP."""
    command = ["env", "--default-signal=HUP", sys.executable, str(MANAGE), "lab", *words.split()]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=-1) as run:
        try:  # a Redis, the runner and two worker processes
            until(lambda: len(family(tmp_path)) >= 4, "the processes", PATIENCE)
            run.send_signal(how)
            assert b"Interrupted" in run.communicate(timeout=PATIENCE)[1]
            assert run.returncode == 130
        finally:
            run.kill()
    until(lambda: not family(tmp_path), "their end", PATIENCE)
    assert list(tmp_path.iterdir()) == []
