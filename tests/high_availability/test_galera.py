"""A Galera cluster of three behind HAProxy: the node that is written to is killed in mid-sale."""

import pytest

from loadtest.kernel.topology import Topology
from tests.devservers.galera import Galera
from tests.high_availability.sale import carry, execute, kill

MAX_GAP = 10.0


@pytest.mark.long
def test_sale_survives_the_death_of_the_writer() -> None:
    with Galera() as cluster:
        topology = Topology(
            servers=("redis",), is_deployed=True, environ={"DATABASE_URL": cluster.url}
        )
        first, second, third = cluster.nodes
        bootstrap = "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'"
        steps = [kill(first), kill(second, stops=[0]), execute(third, bootstrap)]
        report = carry("Galera", topology, steps=steps)
        assert not first.is_running
    failover, minority, repaired = (step[0] for step in report["steps"])
    assert report["lost"] == 0
    assert report["breaches"] == []
    assert failover["gap"] < MAX_GAP
    assert {*failover["answers"]} == {"201", "503"}
    assert {*minority["answers"]} == {"503"}
    assert repaired["gap"] < MAX_GAP
