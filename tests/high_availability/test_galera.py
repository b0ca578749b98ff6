"""A Galera cluster of three behind HAProxy: the node that is written to is killed in mid-sale."""

from functools import partial

import pytest

from loadtest.kernel.topology import Topology
from tests.devservers.galera import Galera
from tests.high_availability.sale import Step, carry

MAX_GAP = 10.0
BOOTSTRAP = "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'"


def topology(cluster: Galera) -> Topology:
    environ = {"DATABASE_URL": cluster.url}
    return Topology(servers=("redis",), is_deployed=True, environ=environ)


@pytest.mark.long
def test_sale_survives_the_death_of_the_writer() -> None:
    """The last of three has no quorum: it sells nothing until an operator lets it."""
    with Galera() as cluster:
        first, second, third = cluster.nodes
        report = carry(
            "Galera",
            topology(cluster),
            Step(first.kill),
            Step(second.kill, stops=[0]),
            Step(partial(third.execute, BOOTSTRAP)),
        )
    failover, minority, repaired = (step[0] for step in report["steps"])
    assert report["lost"] == 0
    assert {*failover["answers"]} == {"201", "503"}
    assert failover["gap"] < MAX_GAP
    assert {*minority["answers"]} == {"503"}
    assert repaired["gap"] < MAX_GAP


@pytest.mark.long
def test_several_writers_lose_no_order() -> None:
    """Without a lock their transactions conflict, and those of one node are rolled back."""
    conflicts: list[int] = []
    with Galera(has_one_writer=False) as cluster:
        steps = [Step(lambda: conflicts.append(cluster.conflicts()))] * 6
        report = carry("Galera, three writers", topology(cluster), *steps, backend="none")
    assert conflicts[-1] > 5
    assert report["lost"] == 0
    assert {status for [sale] in report["steps"] for status in sale["answers"]} <= {"201", "503"}
