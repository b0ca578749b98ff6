"""Rows of the fault suite as fixed plans of torture: real processes, judged like random runs.

The judges are those of `verify torture`: linearizability, tokens, a guarded number, liveness
within a lease and four seconds, and leaks. Overlaps of holders, and their effect on the stock, are
shown in tests/shop/purchase/test_fence_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fault_rows import record_outcome
from tests.verification.torture.test_torture import BACKENDS
from verification.torture.catalogue import TTL
from verification.torture.plan import Fault, Plan
from verification.torture.runner import Torture

pytestmark = pytest.mark.long
MACHINES = [name for name in BACKENDS if name not in ("database on SQLite", "process")]
SHARED = ["redis", "zookeeper"]
Replay = Callable[..., None]


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[Replay]:
    """Replay a workload with faults on the servers of one backend."""
    with Torture() as torture:

        def replay(workload: str, *faults: Fault) -> None:
            backend = BACKENDS[request.param]
            plan = Plan(seed=1, backend=backend, workload=workload, names=1, faults=faults)
            run = torture.run(plan)
            assert all(proof for _fault, proof in run.proofs), run.proofs
            assert len(run.proofs) == len(faults)
            assert (run.violations, run.undecided) == ([], 0)
            assert run.counts["grants"] > 0
            record_outcome("torture: no violation")

        yield replay


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("backend", names, indirect=True)


@pytest.mark.faults(row=1)
@on(*MACHINES)
def test_row_1_stopped_for_two_leases(backend: Replay) -> None:
    backend("mutex", Fault("stop", 0.2, 2.2 * TTL, 1))


@pytest.mark.faults(row=1)
@pytest.mark.parametrize("kind", ["semaphore", "read-write"])
@on(*SHARED)
def test_row_1_stopped_holder_of_a_shared_lock(backend: Replay, kind: str) -> None:
    backend(kind, Fault("stop", 0.2, 2.2 * TTL, 1))


@pytest.mark.faults(row=3)
@on(*MACHINES)
def test_row_3_killed_holder_is_replaced(backend: Replay) -> None:
    backend("mutex", Fault("kill", 0.4, 0, 1), Fault("kill", 0.9, 0, 2))


@pytest.mark.faults(row=5)
@on("redis", "database on MariaDB", "database on PostgreSQL", "mysql_session", "postgresql_session")
def test_row_5_server_is_killed_and_restarted(backend: Replay) -> None:
    backend("fenced", Fault("restart", 0.5, 0.3, 0))


@pytest.mark.faults(row=6)
@on("redlock")
def test_row_6_restarted_master_waits_before_it_votes(backend: Replay) -> None:
    backend("mutex", Fault("restart", 0.3, 0.1, 0), Fault("restart", 1.8, 0.1, 1))


@pytest.mark.faults(row=13)
@on("zookeeper")
def test_row_13_connections_are_cut_while_processes_wait(backend: Replay) -> None:
    backend("mutex", Fault("cut", 0.4, 0.3, 0), Fault("partition", 1.2, 1.1, 1))


@pytest.mark.faults(row=14)
@on("zookeeper")
def test_row_14_server_is_killed_and_stopped(backend: Replay) -> None:
    backend("mutex", Fault("restart", 0.4, 0.2, 0), Fault("pause", 1.6, 0.6, 0))
