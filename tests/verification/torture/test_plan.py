"""Plans depend on their seed alone, and fit their backend."""

from __future__ import annotations

import json

import pytest

from locking.policy.active import MAX_AGE
from verification.torture.catalogue import (
    CUTTING_OFF,
    HOLDING,
    OF_PROCESSES,
    ON_LINKS,
    STORES,
    WORKLOADS,
    kinds_of,
    workloads_of,
)
from verification.torture.plan import (
    ALL,
    ANNOUNCED,
    EVERY,
    LONG_TTL,
    OPERATOR,
    SWITCH_AFTER,
    Fault,
    Plan,
    generate,
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
        for fault in plan.faults:
            if fault.kind in ON_LINKS and not plan.store.shop:  # a shop always has links
                assert plan.linked({OPERATOR: 0, ALL: 1}.get(fault.target, fault.target))


def test_no_process_dies_while_leases_are_long() -> None:
    plans = [generate(seed, "redis") for seed in range(200)]
    long = [plan for plan in plans if plan.ttl == LONG_TTL]
    assert {plan.workload for plan in long} == set(HOLDING)
    assert not {fault.kind for plan in long for fault in plan.faults} & {*OF_PROCESSES, "restart"}


def switches(backend: str) -> list[Plan]:
    return [generate(seed, backend, ("switch",)) for seed in range(100)]


@pytest.mark.parametrize("backend", ["redis", "database-mariadb"])
def test_many_switches_lose_their_store_for_longer_than_a_lease(backend: str) -> None:
    """And others of the same plans do not."""
    cut_off = [
        any(
            fault.kind in CUTTING_OFF
            and (fault.target, fault.server) == (OPERATOR, EVERY)
            and fault.at < ANNOUNCED
            and fault.at + fault.seconds > SWITCH_AFTER + MAX_AGE + plan.ttl
            for fault in plan.faults
        )
        for plan in switches(backend)
    ]
    assert 15 < sum(cut_off) < 70


def test_many_announcements_of_a_switch_are_committed_late() -> None:
    late = [
        any(fault.kind == "late-commit" and fault.at < SWITCH_AFTER for fault in plan.faults)
        for plan in switches("database-postgresql")
    ]
    assert 10 < sum(late) < 60


def test_processes_of_redlock_do_without_different_masters() -> None:
    views = [
        {fault.server for fault in plan.faults if fault.target in (OPERATOR, ALL)} - {EVERY}
        for plan in switches("redlock")
    ]
    assert sum(len(servers) > 1 for servers in views) > 15


def test_no_process_stops_where_no_lease_may_be_lost() -> None:
    plans = [generate(seed, "redis", ("two-stores",)) for seed in range(100)]
    assert not {"stop", "late-commit"} & {fault.kind for plan in plans for fault in plan.faults}


def test_a_standby_replaces_no_server_while_the_policy_is_switched() -> None:
    """It would lack the last switch."""
    kinds = {fault.kind for plan in switches("database-postgresql") for fault in plan.faults}
    assert "promote" in kinds_of("database-postgresql")
    assert "promote" not in kinds


def test_backends_run_what_they_can() -> None:
    assert workloads_of("redis") == [one for one in WORKLOADS if one != "stock"]
    assert "two-stores" not in workloads_of("process")
    assert "semaphore" not in workloads_of("database")
    assert "fenced" not in workloads_of("redlock")
    assert "switch" not in workloads_of("process")
    assert "switch" not in workloads_of("mysql_session"), "it cannot list its holders"


@pytest.mark.parametrize(
    ("backend", "kind", "excludes"),
    [
        ("redis", "stop", True),
        ("redis", "restart", False),
        ("redis", "promote", False),
        ("redlock", "restart", True),
        ("redlock", "clock", False),
        ("database-mariadb", "restart", True),
        ("mysql_session", "pause", True),
        ("mysql_session", "cut", False),
        ("zookeeper", "partition", True),
        ("database-postgresql", "promote", False),
        ("database-postgresql", "full-disk", True),
    ],
)
def test_exclusion_is_promised_unless_a_fault_ends_locks(
    backend: str, kind: str, excludes: bool
) -> None:
    fault = Fault(kind, 1.0, 1.0, 0)
    plan = Plan(seed=1, backend=backend, workload="mutex", names=1, faults=(fault,))
    assert plan.excludes() is excludes
    assert plan.only([]).excludes()
