"""PostgreSQL with Patroni behind HAProxy: the primary's machine is killed in mid-sale."""

import pytest

from loadtest.kernel.topology import Topology
from tests.devservers.patroni import Patroni
from tests.high_availability.sale import Report, Step, carry

pytestmark = pytest.mark.long
MAX_GAP = 10.0


def sell(cluster: Patroni, *steps: Step) -> Report:
    name = f"Patroni, {'synchronous' if cluster.is_synchronous else 'asynchronous'}"
    environ = {"DATABASE_URL": cluster.url}
    topology = Topology(servers=("redis",), is_deployed=True, environ=environ)
    report = carry(name, topology, *steps)
    failover = report["steps"][-1][0]
    assert failover["gap"] < MAX_GAP
    assert {*failover["answers"]} <= {"201", "503"}
    return report


def test_sale_survives_the_death_of_the_primary() -> None:
    with Patroni(is_synchronous=True) as cluster:
        report = sell(cluster, Step(cluster.primary.kill))
        assert cluster.standby.responds("primary")
    assert report["lost"] == 0


def test_sale_survives_the_death_of_the_standby() -> None:
    """Patroni lets the primary commit alone."""
    with Patroni(is_synchronous=True) as cluster:
        report = sell(cluster, Step(cluster.standby.kill))
    assert report["lost"] == 0


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_orders_that_no_standby_has(is_synchronous: bool) -> None:
    """Synchronous replication acknowledges none of them; asynchronous replication loses them."""
    with Patroni(is_synchronous=is_synchronous) as cluster:

        def kill() -> None:
            cluster.primary.kill()
            cluster.primary.replication.lose()  # what the standby has not received by now

        hold = Step(cluster.primary.replication.hold, stops=[0] if is_synchronous else [])
        report = sell(cluster, hold, Step(kill))
        assert cluster.standby.responds("primary")
    held = report["steps"][0][0]
    assert {*held["answers"]} == {"503" if is_synchronous else "201"}
    assert (report["lost"] == 0) == is_synchronous
