"""Plans depend on their seed alone, and fit their backend."""

from __future__ import annotations

import json

import pytest

from loadtest.torture.plan import (
    HOLDING,
    LONG_TTL,
    OF_PROCESSES,
    STORES,
    WORKLOADS,
    Fault,
    Plan,
    generate,
    kinds_of,
    workloads_of,
)


@pytest.mark.parametrize("backend", STORES)
def test_a_seed_always_gives_the_same_plan(backend: str) -> None:
    plans = [generate(seed, backend) for seed in range(90)]
    assert plans == [generate(seed, backend) for seed in range(90)]
    assert len(set(plans)) == 90
    assert {plan.workload for plan in plans} == set(workloads_of(backend))
    assert {fault.kind for plan in plans for fault in plan.faults} == set(kinds_of(backend))
    for plan in plans:
        assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_no_process_dies_while_leases_are_long() -> None:
    plans = [generate(seed, "redis") for seed in range(200)]
    long = [plan for plan in plans if plan.ttl == LONG_TTL]
    assert {plan.workload for plan in long} == set(HOLDING)
    assert not {fault.kind for plan in long for fault in plan.faults} & {*OF_PROCESSES, "restart"}


def test_backends_run_what_they_can() -> None:
    assert workloads_of("redis") == list(WORKLOADS)
    assert "semaphore" not in workloads_of("database")
    assert "fenced" not in workloads_of("redlock")
    assert "switch" not in workloads_of("process")


@pytest.mark.parametrize(
    ("backend", "kind", "excludes"),
    [
        ("redis", "stop", True),
        ("redis", "restart", False),
        ("redis", "promote", False),
        ("redlock", "restart", True),
        ("redlock", "clock", True),
        ("database-mariadb", "restart", True),
        ("mysql_session", "pause", True),
        ("mysql_session", "cut", False),
        ("zookeeper", "partition", True),
    ],
)
def test_exclusion_is_promised_unless_a_fault_ends_locks(
    backend: str, kind: str, excludes: bool
) -> None:
    fault = Fault(kind, 1.0, 1.0, 0)
    plan = Plan(seed=1, backend=backend, workload="mutex", names=1, faults=(fault,))
    assert plan.excludes() is excludes
    assert plan.only([]).excludes()


def test_a_clock_that_jumps_on_two_masters_may_lead_to_two_holders() -> None:
    faults = tuple(Fault("clock", 1.0, 1.0, target) for target in range(2))
    plan = Plan(seed=1, backend="redlock", workload="mutex", names=1, faults=faults)
    assert not plan.excludes()
    assert plan.only([0]).excludes()
