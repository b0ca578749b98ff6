"""Seconds of `verify torture` on two backends, its controls, and minutes of it in `make faults`."""

import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from devservers.faults.waiting import FaultFailed
from tests.loadtest.lab import verify
from verification.torture.campaign import TortureParams, plans, reduce
from verification.torture.catalogue import MARKS, WORKLOADS, kinds_of
from verification.torture.commands import Commands
from verification.torture.plan import MANY, OPERATOR, Fault, Plan, generate
from verification.torture.runner import Run, Torture

RUNS = 2 * int(os.environ.get("ROUNDS", "1"))
SEED = int(os.environ.get("SEED", "42"))
ALONE = "process", "mysql_session", "postgresql_session", "redis", "redlock", "zookeeper"
BACKENDS = {
    "database on SQLite": "database",
    "database on MariaDB": "database-mariadb",
    "database on PostgreSQL": "database-postgresql",
    **dict(zip(ALONE, ALONE, strict=True)),
}


def tortured(*options: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the report, the row of its only backend, and the exit code."""
    report, code = verify("torture", "--minutes=9", *options)
    (row,) = report["backends"]
    return report, row, code


@pytest.mark.parametrize(
    ("backend", "seed", "workload"),
    [
        ("redis", 1, "read-write"),
        pytest.param("zookeeper", 1, "semaphore", marks=pytest.mark.long),
        pytest.param("database", 1, "switch", marks=pytest.mark.long),
    ],
)
def test_fixed_seeds_keep_the_promises(backend: str, seed: int, workload: str) -> None:
    options = f"--backend={backend}", f"--seed={seed}", f"--workload={workload}", "--runs=1"
    report, row, code = tortured(*options)
    assert (report["failures"], code) == ([], 0)
    assert row["grants"] > 0
    assert sum(row["faults"].values()) > 0
    assert report["marks"][workload].get("switches", 1) > 0


@pytest.mark.parametrize(
    ("runs", "unreached"), [(49, []), (50, ["switch: switches", "redis: faults"])]
)
def test_campaign_that_never_reaches_a_mark_fails(
    runs: int, unreached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a workload switched nothing for weeks, and each of its runs was ok."""
    monkeypatch.setattr(
        "verification.torture.campaign.Torture.run",
        lambda self, plan: Run(plan, [], counts={"grants": 5, "switches": 0}),
    )
    options = "--backend=redis", "--workload=switch", f"--runs={runs}"
    report, code = verify("torture", "--minutes=9", *options)
    assert (report["unreached"], code) == (unreached, bool(unreached)), "no fault fired, either"
    assert report["marks"]["switch"] == {"runs": runs, "grants": 5 * runs, "switches": 0}


def test_campaign_with_an_undecided_run_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify check` has the same exit code for such a history."""
    monkeypatch.setattr(
        "verification.torture.campaign.Torture.run", lambda self, plan: Run(plan, [], undecided=1)
    )
    report, code = verify("torture", "--minutes=9", "--backend=redis", "--runs=1")
    assert ([row["undecided"] for row in report["backends"]], code) == ([1], 2)


def test_campaign_without_a_run_fails() -> None:
    report, code = verify("torture", "--minutes=0")
    assert (report["problem"], code) == ("no run was completed", 1)


def test_every_workload_has_marks() -> None:
    assert MARKS.keys() == WORKLOADS.keys()


@pytest.mark.long
def test_a_shop_without_a_lock_oversells() -> None:
    """The control: naive writes on SQLite."""
    with Torture() as torture:
        found = torture.run(generate(2, "shop-none").only([]))
    assert any(one.startswith("audit: ") for one in found.violations)
    assert found.counts["grants"] > 3


def test_the_control_without_a_lock_fails_and_can_be_repeated() -> None:
    options = "--backend=none", "--seed=2", "--workload=mutex", "--runs=1", "--tries=1"
    report, _row, code = tortured(*options)
    assert code == 1
    (failure,) = report["failures"]
    assert failure["violations"][0].startswith("exclusion: ")
    assert (failure["only"], failure["reproduced"]) == ([], "1 of 1")
    asked = TortureParams(backends=("none",), workloads=("mutex",), seed=2, only=",")
    assert list(plans(asked)) == [generate(2, "none", ("mutex",)).only([])]


class Dying(Commands):
    """A process that ends when it is asked for a switch."""

    def switch(self, *, alias: str, mode: str) -> Any:
        os._exit(1)


def test_fault_ends_before_the_servers_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else it would start a server again that nothing stops."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = Plan(seed=1, backend="redis", workload="switch", names=1, faults=())
    plan = replace(plan, faults=(Fault("restart", 0.1, 1.5, 0),))
    with Torture(commands=f"{__name__}:Dying") as torture, pytest.raises(FaultFailed):
        torture.run(plan)
    for thread in threading.enumerate():
        if thread.name.endswith("(run)"):
            thread.join()
    assert list(tmp_path.iterdir()) == []


class Crashing(Commands):
    """A process that ends during its work."""

    def work(self, **_options: Any) -> Any:
        os._exit(1)


def test_process_that_ends_without_a_fault_fails_its_run() -> None:
    plan = Plan(seed=1, backend="process", workload="mutex", names=1, faults=())
    crashing = Torture(commands=f"{__name__}:Crashing")
    with crashing as torture, pytest.raises(FaultFailed, match="ended with exit code 1"):
        torture.run(plan)


@pytest.mark.parametrize("needed", [[], [3], [0, 4], [1, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_only_the_needed_faults_are_kept(needed: list[int]) -> None:
    assert reduce(6, lambda numbers: set(needed) <= set(numbers)) == needed


@pytest.mark.parametrize(
    "wrong",
    [
        "--only=9",
        "--only=x",
        "--only=-1",
        "--backend=mysql",
        "--minutes=-1",
        "--backend=process --workload=switch",
    ],
)
def test_wrong_arguments_are_refused(wrong: str) -> None:
    with pytest.raises(CommandError):
        verify("torture", *wrong.split())


@pytest.mark.long
@pytest.mark.parametrize("backend", ["redis", "database-mariadb", "database-postgresql"])
def test_each_fault_leaves_its_proof(backend: str) -> None:
    """Faults of one server follow each other."""
    of_servers = {"restart": (1.0, 0), "pause": (1.0, 0)}
    others = {"partition": (1.0, 1), "late": (1.0, 2), "delay": (1.0, 3), "cut": (3.0, 1)}
    others |= {"stop": (3.0, 2), "kill": (3.0, 3), "late-commit": (0.1, OPERATOR)}
    workload = "mutex" if backend == "redis" else "switch"  # that one commits
    plan = Plan(seed=1, backend=backend, workload=workload, names=MANY, faults=())
    with Torture() as torture:
        for kinds in (of_servers, others):
            asked = {kind: kinds[kind] for kind in kinds_of(backend) if kind in kinds}
            faults = [Fault(kind, at, 0.4, target) for kind, (at, target) in asked.items()]
            run = torture.run(replace(plan, faults=tuple(faults)))
            assert [str(fault) for fault, proof in run.proofs if not proof] == []
            assert {fault.kind for fault, _proof in run.proofs} == asked.keys()


@pytest.mark.long
@pytest.mark.faults(row="T")
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_faults_break_no_promise(backend: str) -> None:
    options = f"--backend={BACKENDS[backend]}", f"--seed={SEED}", f"--runs={RUNS}", "--minutes=9"
    report, row, code = tortured(*options)
    assert (report["failures"], code) == ([], 0)
    assert row["grants"] > 0
