"""`manage.py lab bench locks`: its measurements, its targets and its arguments."""

import json
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from devservers import Redis, process_pool
from devservers.process_pool import PoolFailed, ProcessPool, StartGate
from devservers.programs import required
from loadtest.bench.locks import measure, runner
from loadtest.bench.locks.measure import Turn, figures, killed_holder
from loadtest.bench.locks.report import Locks
from loadtest.bench.locks.systems import SYSTEMS, Handle, System
from loadtest.bench.services import Usage
from tests.loadtest.lab import lab


def test_figures_of_a_contention():
    used = Usage(6, 3)
    found = figures([[Turn(0, 1, 3), Turn(3, 7, 9)], [Turn(0, 4, 6)]], 3e-6, used)
    waits = found["hand_off_ms_p50"], found["hand_off_ms_p99"], found["worst_wait_ms"]
    assert waits == (1000, 1000, 4000), "from a release to the next grant of anyone"
    assert (found["commands"], found["round_trips"]) == (2, 1)
    turn = Turn(0, 0, 0)
    assert figures([[turn] * 5, [turn] * 5], 0.0, used)["jain"] == 1
    assert figures([[turn] * 5, []], 0.0, used)["jain"] == 0.5
    assert Usage(110, 60, 5).since(Usage(100, 50, 5)) == Usage(5, 5, 0), "without reading them"


def test_process_pool_reports_errors_and_leaves_no_process(monkeypatch):
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
    monkeypatch.setattr(process_pool, "TIMEOUT", 0.1)
    with pytest.raises(PoolFailed, match="not all 2 were ready"):
        StartGate(2)()


def test_lock_that_a_killed_holder_keeps_has_no_time_of_its_next_grant(monkeypatch):
    monkeypatch.setattr(measure, "WAIT", 1.0)
    grants = multiprocessing.get_context("fork").Value("i", 0)

    def acquire(wait):  # both processes are ready, the first holds it, the other is refused
        with grants.get_lock():
            grants.value += 1
            return grants.value <= 3

    opener = lambda name, ttl: Handle(acquire, lambda: None)  # noqa: E731
    kept = System(name="kept", family="redis", role="peer", open=opener)
    with pytest.raises(PoolFailed, match="no grant within 1 s"):
        killed_holder(kept, "x")


def test_locks_that_fail_are_left_out_and_the_others_measured(monkeypatch, capsys, settings):
    def fail(name, ttl):
        raise LookupError("another version")

    floor = next(one for one in SYSTEMS if (one.family, one.role) == ("redis", "floor"))

    def expire(name, ttl):
        used = iter([None])  # by the try whether it can be used; each process has its own
        return Handle(lambda wait: True, lambda: next(used))

    openers = {"broken": fail, "refusing": lambda name, ttl: Handle(lambda wait: False, print)}

    def stay(name, ttl):
        grants = iter([True])  # as if its release had been ineffective
        return Handle(lambda wait: next(grants, False), lambda: None)

    openers |= {"staying": stay, "expiring": expire}
    peers = [
        System(name=name, family="redis", role="peer", open=opener)
        for name, opener in openers.items()
    ]
    monkeypatch.setattr(runner, "SYSTEMS", [*peers, floor])
    with Redis() as server:
        settings.REDIS_URL = server.url
        asked = {"backends": ["redis"], "rounds": 1, "peers": True}
        runner.main(asked, SimpleNamespace(missing={}))
    events = map(json.loads, capsys.readouterr().out.splitlines())
    rounds = [event for event in events if event["event"] == "round"]
    assert [one["line"] for one in rounds if one["round"]] == [floor.name]
    why = {one["line"]: one["why"].partition(": ")[2] for one in rounds if "why" in one}
    refused = "refusing did not grant a free lock"
    failed = {"broken": "another version", "refusing": refused, "expiring": "StopIteration()"}
    failed["staying"] = "PoolFailed('a free lock was not granted')"
    assert why == {**failed, floor.name: ""}
    assert rounds[-2]["why"] == "failed: StopIteration()"


def test_every_backend_has_a_floor_and_a_peer():
    assert runner.main, "its module has all systems"
    roles = {(system.family, system.role) for system in SYSTEMS}
    families = {family for family, _ in roles}
    assert roles == {(family, role) for family in families for role in ("floor", "ours", "peer")}


@pytest.mark.parametrize(("role", "is_ok"), [("ours", False), ("peer", True)])
def test_only_a_lock_of_this_library_that_fails_is_wrong(role, is_ok):
    """Other libraries may not be installed."""
    failed = {"line": "redis", "role": role, "why": "failed: no grant within 20 s"}
    report = {"missing": {}, "systems": [failed]}
    assert Locks().is_ok(report) is is_ok
    shown = [*Locks().wrong(report), *Locks().notes(report)]
    assert shown == ["redis: failed: no grant within 20 s"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--buyers=5"], "--buyers belongs to `lab bench purchase`"),
        (["journey", "--no-peers"], "--no-peers belongs to `lab bench locks`"),
        (["--seconds=0"], "--seconds belongs to `lab bench purchase`"),
        ([f"--write={__file__}"], "has no place between"),
    ],
)
def test_bad_arguments_are_refused(wrong, message):
    with pytest.raises(CommandError, match=message):
        call_command("lab", "bench", *wrong)


def test_short_benchmark(tmp_path):
    required("postgres")
    file = tmp_path / "locks.md"
    file.write_text("before\n<!-- lab_bench -->\nold\n<!-- /lab_bench -->\nafter\n")
    options = ["--backend=postgresql_session", "--rounds=1", "--no-peers", f"--write={file}"]
    found, code = lab("bench", "locks", *options)
    rows = {row["system"]: row for row in found["systems"]}
    assert code == 0
    assert found["versions"]["database"].startswith("PostgreSQL")
    assert [row["why"] for row in rows.values()] == [""] * 3
    assert rows["INSERT + DELETE, PostgreSQL"]["to_floor"] == 1
    assert rows["raw pg_advisory_lock"]["to_floor"] > 0, "the first floor is the row"
    ours = rows["postgresql_session"]
    assert ours["to_floor"] > 0
    assert 0.5 < ours["jain"] <= 1
    assert 1 < ours["commands"] < 5, "the server counts the statements"
    assert ours["waiter_requests"] <= 3
    assert all(target["target"].startswith("postgresql_session: ") for target in found["targets"])
    before, table = file.read_text().split("<!-- lab_bench -->\n")
    assert (before, "old" in table, table.count("| **postgresql_session** |")) == (
        "before\n",
        False,
        1,
    )
    assert "| hand-off p50 ms | p99 ms |" in table, "without the line breaks of a terminal"
    assert "\nMedians of 1 rounds on python " in table
    assert table.endswith("<!-- /lab_bench -->\nafter\n")
