"""`manage.py lab bench`: what it measures, and what it makes of it."""

import io
import json
import os
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from loadtest.bench.locks import report, rounds
from loadtest.bench.locks.measure import Contention, Turn, ready, waves
from loadtest.bench.locks.systems import SYSTEMS, Handle, System
from loadtest.bench.services import Usage
from loadtest.load.process_pool import PoolFailed, ProcessPool


def contention(*turns):
    return Contention(turns=list(turns), cpu=0.0, requests=Usage(0, 0))


def test_hand_offs_are_from_a_release_to_the_next_grant_whoever_gets_it():
    crowd = contention([Turn(0, 1, 3), Turn(3, 7, 9)], [Turn(0, 4, 6)])
    assert crowd.hand_offs == [1, 1]
    assert crowd.worst_wait == 4
    assert crowd.grants == 3


def test_jains_index():
    turn = Turn(0, 0, 0)
    assert contention([turn] * 5, [turn] * 5).jain == 1
    assert contention([turn] * 5, []).jain == 0.5


def test_the_question_itself_is_not_counted():
    assert Usage(110, 60, 5).since(Usage(100, 50, 5)) == Usage(5, 5, 0)


def test_a_crew_tells_what_went_wrong_and_leaves_nobody():
    def fail(number):
        raise ValueError("boom")

    with ProcessPool(fail, 2) as pool, pytest.raises(PoolFailed, match="boom"):
        pool.results()
    with ProcessPool(lambda number: os.getpid(), 2) as pool:
        pids = pool.results()
    assert len(set(pids)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_lock_that_does_not_grant_is_reported_rather_than_measured():
    deaf = System(
        name="deaf",
        family="redis",
        role="peer",
        open=lambda name, ttl: Handle(lambda wait: False, lambda: None),
    )
    with pytest.raises(PoolFailed, match="deaf"):
        ready(deaf, "x")
    with pytest.raises(PoolFailed):
        waves(deaf, "x", 1)


def test_every_backend_has_a_floor_and_a_peer_beside_it():
    assert rounds.main
    roles = {(system.family, system.role) for system in SYSTEMS}
    families = {family for family, _ in roles}
    assert roles == {(family, role) for family in families for role in ("floor", "ours", "peer")}


@pytest.mark.parametrize(
    ("measured", "met"),
    [({"wave_ms": 21.0}, True), ({"wave_ms": 23.0}, False), ({}, None)],
)
def test_targets(measured, met):
    row = {"system": "redis", "family": "redis", "role": "ours", **measured}
    found = {target: met for target, _value, met in report._targets({"redis": row})}
    assert found["redis: wave ms <= 22"] is met
    assert not any("zookeeper" in target for target in found)


def test_a_floor_is_that_of_the_same_family():
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
    ("wrong", "said"),
    [
        (["--rounds=0"], "rounds: 0 is not within"),
        (["--backend=none"], "invalid choice: 'none'"),
        (["--buyers=5"], "buyers: of `lab bench purchase`"),
        (["cache", "--no-peers"], "no_peers: of `lab bench locks`"),
        (["keys", "--write=keys.md"], "write: of locks and purchase, not of keys"),
        (["--write=/no/locks.md"], "write: /no/locks.md cannot be written"),
        ([f"--write={__file__}"], "has no place between"),
    ],
)
def test_bad_arguments(wrong, said):
    with pytest.raises(CommandError, match=said):
        call_command("lab", "bench", *wrong)


def test_a_short_benchmark_of_one_backend(tmp_path):
    file = tmp_path / "locks.md"
    file.write_text("before\n<!-- lab_bench -->\nold\n<!-- /lab_bench -->\nafter\n")
    out = io.StringIO()
    options = ["--backend=redis", "--rounds=1", "--no-peers", "--json", f"--write={file}"]
    call_command("lab", "bench", *options, stdout=out)
    found = json.loads(out.getvalue())
    rows = {row["system"]: row for row in found["systems"]}
    assert [row["why"] for row in rows.values()] == ["", ""]
    assert rows["SET NX PX + EVALSHA"]["to_floor"] == 1
    assert rows["redis"]["jain"] > 0.9
    assert rows["redis"]["waiter_requests"] <= 3
    assert {target["met"] for target in found["targets"]} <= {True, False, None}
    written = file.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "| **redis** |" in written
    assert "old" not in written
