"""`manage.py lab bench locks`: its measurements, its targets and its arguments."""

import io
import json
import os
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from devservers import process_pool
from devservers.process_pool import PoolFailed, ProcessPool, StartGate
from loadtest.bench.locks import report, runner
from loadtest.bench.locks.measure import Contention, Turn, ready, waves
from loadtest.bench.locks.systems import SYSTEMS, Handle, System
from loadtest.bench.services import Usage


def contention(*turns):
    return Contention(turns=list(turns), cpu=0.0, requests=Usage(0, 0))


def test_hand_off_lasts_from_release_to_the_next_grant_of_anyone():
    found = contention([Turn(0, 1, 3), Turn(3, 7, 9)], [Turn(0, 4, 6)])
    assert found.hand_offs == [1, 1]
    assert found.worst_wait == 4
    assert found.grants == 3


def test_jain_index_is_one_for_equal_shares():
    turn = Turn(0, 0, 0)
    assert contention([turn] * 5, [turn] * 5).jain == 1
    assert contention([turn] * 5, []).jain == 0.5


def test_usage_excludes_the_requests_that_read_the_counters():
    assert Usage(110, 60, 5).since(Usage(100, 50, 5)) == Usage(5, 5, 0)


def test_process_pool_reports_errors_and_leaves_no_process():
    def fail(number):
        raise ValueError("boom")

    with ProcessPool(fail, 2) as pool, pytest.raises(PoolFailed, match="boom"):
        pool.results()
    with ProcessPool(lambda number: os._exit(1)) as pool, pytest.raises(PoolFailed, match="killed"):
        pool.results()
    with ProcessPool(lambda number: os.getpid(), 2) as pool:
        pids = pool.results()
    assert len(set(pids)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_gate_that_a_party_never_reaches_is_reported(monkeypatch):
    monkeypatch.setattr(process_pool, "TIMEOUT", 0.1)
    with pytest.raises(PoolFailed, match="not all 2 were ready"):
        StartGate(2)()


def test_lock_that_does_not_grant_is_reported_and_not_measured():
    refusing = System(
        name="refusing",
        family="redis",
        role="peer",
        open=lambda name, ttl: Handle(lambda wait: False, lambda: None),
    )
    with pytest.raises(PoolFailed, match="refusing"):
        ready(refusing, "x")
    with pytest.raises(PoolFailed):
        waves(refusing, "x", 1)


def test_every_backend_has_a_floor_and_a_peer():
    assert runner.main
    roles = {(system.family, system.role) for system in SYSTEMS}
    families = {family for family, _ in roles}
    assert roles == {(family, role) for family in families for role in ("floor", "ours", "peer")}


@pytest.mark.parametrize(
    ("measured", "met"),
    [({"wave_ms": 21.0}, True), ({"wave_ms": 23.0}, False), ({}, None)],
)
def test_targets_of_measured_systems_only(measured, met):
    row = {"system": "redis", "family": "redis", "role": "ours", **measured}
    found = {target["target"]: target["met"] for target in report.targets({"redis": row})}
    assert found["redis: wave ms <= 22"] is met
    assert not any("zookeeper" in target for target in found)


def test_ratio_to_a_peer_is_a_target():
    rows = {
        name: {"system": name, "family": "redis", "role": role, "pairs_per_second": rate}
        for name, role, rate in (("redis", "ours", 300.0), ("redis-py Lock", "peer", 100.0))
    }
    found = {target["target"]: target["value"] for target in report.targets(rows)}
    assert found["redis: x redis-py Lock >= 2"] == 3.0


def test_floor_is_of_the_same_family():
    rows = {
        "raw GET_LOCK": {"family": "mysql", "role": "floor", "pairs_per_second": 100.0},
        "INSERT + DELETE": {"family": "mysql", "role": "floor", "pairs_per_second": 50.0},
        "database": {"family": "mysql", "role": "ours", "pairs_per_second": 50.0},
        "mysql_session": {"family": "mysql", "role": "ours", "pairs_per_second": 50.0},
    }
    for name, row in rows.items():
        row["system"] = name
        report._compare_with_floor(row, rows)
    assert rows["database"]["to_floor"] == 1
    assert rows["mysql_session"]["to_floor"] == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--rounds=0"], "--rounds must be between"),
        (["--backend=none"], "Unknown --backend 'none'"),
        (["--buyers=5"], "--buyers belongs to `lab bench purchase`"),
        (["journey", "--no-peers"], "--no-peers belongs to `lab bench locks`"),
        (["--seconds=0"], "--seconds belongs to `lab bench purchase`"),
        (["--write=/no/locks.md"], "--write: cannot write /no/locks.md"),
        ([f"--write={__file__}"], "has no place between"),
        (["purchase", "--rounds=0"], "--rounds must be between"),
        (["purchase", "--seconds=0"], "--seconds must be between 0.1 and 25"),
        (["purchase", "--seconds=nan"], "--seconds must be between"),
        (["purchase", "--buyers=0"], "--buyers must be between 1 and 50,000"),
    ],
)
def test_bad_arguments_are_refused(wrong, message):
    with pytest.raises(CommandError, match=message):
        call_command("lab", "bench", *wrong)


def test_short_benchmark_on_postgresql():
    out = io.StringIO()
    options = ["--backend=postgresql_session", "--rounds=1", "--no-peers", "--json"]
    call_command("lab", "bench", *options, stdout=out)
    found = json.loads(out.getvalue())
    rows = {row["system"]: row for row in found["systems"]}
    assert found["versions"]["database"].startswith("PostgreSQL")
    assert [row["why"] for row in rows.values()] == [""] * 3
    assert rows["raw pg_advisory_lock"]["to_floor"] > 1, "the first floor is the row"
    assert rows["postgresql_session"]["jain"] > 0.9
    assert 1 < rows["postgresql_session"]["commands"] < 5, "the server counts the statements"
    assert rows["postgresql_session"]["waiter_requests"] <= 3


def test_short_benchmark_of_one_backend(tmp_path):
    file = tmp_path / "locks.md"
    file.write_text("before\n<!-- lab_bench -->\nold\n<!-- /lab_bench -->\nafter\n")
    out = io.StringIO()
    options = ["--backend=redis", "--rounds=1", "--no-peers", "--json", f"--write={file}"]
    call_command("lab", "bench", *options, stdout=out)
    found = json.loads(out.getvalue())
    rows = {row["system"]: row for row in found["systems"]}
    assert [row["why"] for row in rows.values()] == ["", "", ""]
    assert rows["redis writer"]["waiter_requests"] <= 3
    assert rows["SET NX PX + EVALSHA"]["to_floor"] == 1
    assert rows["redis"]["jain"] > 0.9
    assert rows["redis"]["waiter_requests"] <= 3
    assert {target["met"] for target in found["targets"]} <= {True, False, None}
    written = file.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "| **redis** |" in written
    assert "old" not in written
