"""Plans depend on their seed alone, and fit their backend."""

import pytest

from verification.torture.catalogue import (
    HOLDING,
    OF_PROCESSES,
    ON_LINKS,
    STORES,
    kinds_of,
    workloads_of,
)
from verification.torture.plan import ALL, LONG_TTL, OPERATOR, Fault, Plan, generate


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
