"""Plans depend on their seed alone, and fit their backend."""

import pytest

from locking.policy.active import MAX_AGE
from verification.torture.catalogue import (
    CUTTING_OFF,
    HOLDING,
    OF_PROCESSES,
    ON_LINKS,
    STORES,
    TTL,
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
    for seed, plan in enumerate(plans):
        assert generate(seed, backend, (plan.workload,)) == plan
        for fault in plan.faults:
            if fault.kind in ON_LINKS and not plan.store.shop:  # a shop always has links
                assert plan.linked({OPERATOR: 0, ALL: 1}.get(fault.target, fault.target))


def test_no_process_fails_where_a_lock_needs_its_owner() -> None:
    """While leases are long."""
    plans = [generate(seed, "redis") for seed in range(200)]
    long = [plan for plan in plans if plan.ttl == LONG_TTL]
    assert {plan.workload for plan in long} == set(HOLDING)
    assert not {fault.kind for plan in long for fault in plan.faults} & {*OF_PROCESSES, "restart"}


def attacks(fault: Fault) -> bool:
    """Return whether it cuts the switch off for longer than a lease, or delays its announcement."""
    if fault.target != OPERATOR or fault.kind not in (*CUTTING_OFF, "late-commit"):
        return False
    ends = fault.at + fault.seconds
    is_long = fault.at < ANNOUNCED and ends > SWITCH_AFTER + MAX_AGE + TTL
    return fault.at < SWITCH_AFTER if fault.kind == "late-commit" else is_long


@pytest.mark.parametrize("backend", ["redis", "database-mariadb", "redlock"])
def test_many_switches_are_attacked_and_others_are_not(backend: str) -> None:
    plans = [generate(seed, backend, ("switch",)) for seed in range(100)]
    assert 15 < sum(any(map(attacks, plan.faults)) for plan in plans) < 80
    if backend == "redlock":  # its processes do without different masters
        views = [{one.server for one in plan.faults if one.server != EVERY} for plan in plans]
        assert sum(len(servers) > 1 for servers in views) > 15


@pytest.mark.parametrize(
    ("backend", "kind", "excludes"),
    [
        ("redis", "stop", True),
        ("redis", "restart", False),
        ("redlock", "restart", True),
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
