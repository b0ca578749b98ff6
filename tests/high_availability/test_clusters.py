"""Sales survive the death of a server in each cluster of docs/how-to/high-availability.md."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from devservers.faults.injectors import CutReplication
from loadtest.kernel.topology import Topology
from locking.backends.redis.cluster import slot_of
from tests.devservers.redis_groups import SLOTS, RedisCluster, SentinelRedis
from tests.high_availability.clusters import SETTINGS, Galera, Patroni
from tests.high_availability.sale import Report, Step, carry

pytestmark = pytest.mark.long
SQL, REDIS = ("DATABASE_URL",), ("LOCK_REDIS_URL", "QUEUE_REDIS_URL")
"""The variables that name a cluster."""
BOOTSTRAP = "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'"


def sell(
    name: str, cluster: Any, variables: tuple[str, ...], *steps: Step, within: float, **asked: Any
) -> Report:
    """Sell through these steps; the last one may stop purchases for `within` seconds."""
    own = {} if variables == SQL else {"database": "mariadb"}
    environ = dict.fromkeys(variables, cluster.url)
    topology = Topology(servers=("redis",), is_deployed=True, environ=environ, **own)
    report = carry(name, topology, *steps, **asked)
    assert report["steps"][-1][0]["gap"] < within
    answers = {status for step in report["steps"] for one in step for status in one["answers"]}
    assert answers <= {"201", "202", "503"}
    return report


def test_galera_survives_the_death_of_the_writer() -> None:
    """The last of three has no quorum: it sells nothing until an operator lets it."""
    with Galera() as cluster:
        first, second, third = cluster.nodes
        kills = Step(first.kill), Step(second.kill, stops=[0])
        repair = Step(partial(third.execute, BOOTSTRAP))
        report = sell("Galera", cluster, SQL, *kills, repair, within=10.0)
    failover, minority, _repaired = (step[0] for step in report["steps"])
    assert report["lost"] == 0
    assert {*failover["answers"]} == {"201", "503"}
    assert failover["gap"] < 10.0
    assert {*minority["answers"]} == {"503"}


def test_several_writers_of_galera_lose_no_order() -> None:
    """Without a lock their transactions conflict, and those of one node are rolled back."""
    conflicts: list[int] = []
    with Galera(has_one_writer=False) as cluster:
        steps = [Step(lambda: conflicts.append(cluster.conflicts()))] * 6
        name = "Galera, three writers"
        report = sell(name, cluster, SQL, *steps, within=10.0, backend="none")
    assert conflicts[-1] > 5
    assert report["lost"] == 0


def sell_with_patroni(cluster: Patroni, *steps: Step) -> Report:
    name = f"Patroni, {'synchronous' if cluster.is_synchronous else 'asynchronous'}"
    return sell(name, cluster, SQL, *steps, within=10.0)


@pytest.mark.parametrize("dies", ["primary", "standby"])
def test_patroni_survives_the_death_of_one_server(dies: str) -> None:
    """The leader of etcd dies first. Without its standby, the primary may commit alone."""
    with Patroni(is_synchronous=True) as cluster:
        steps = Step(cluster.kill_leader_of_etcd), Step(getattr(cluster, dies).kill)
        report = sell_with_patroni(cluster, *steps)
        assert "demoted" not in cluster.primary.log.read_text()
        assert dies == "standby" or cluster.standby.responds("primary")
    assert report["steps"][0][0]["gap"] < SETTINGS["ttl"]
    assert report["lost"] == 0


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_orders_that_no_standby_has(is_synchronous: bool) -> None:
    """Synchronous replication acknowledges none of them; asynchronous replication loses them."""
    with Patroni(is_synchronous=is_synchronous) as cluster:

        def kill() -> None:
            cluster.primary.kill()
            cluster.primary.replication.lose()  # what the standby has not received by now

        hold = Step(cluster.primary.replication.hold, stops=[0] if is_synchronous else [])
        report = sell_with_patroni(cluster, hold, Step(kill))
        assert cluster.standby.responds("primary")
    held = report["steps"][0][0]
    assert {*held["answers"]} == {"503" if is_synchronous else "201"}
    assert (report["lost"] == 0) == is_synchronous


@pytest.fixture
def sentinel() -> Iterator[SentinelRedis]:
    with SentinelRedis() as servers:
        yield servers


def sell_with_sentinel(name: str, servers: SentinelRedis, *steps: Step, **asked: Any) -> Report:
    """Allow 0.5 s to notice (down-after-milliseconds), 3 to promote (failover-timeout), and one."""
    report = sell(f"Sentinel, {name}", servers, REDIS, *steps, within=4.5, **asked)
    assert servers.names(servers.replica)
    assert report["steps"][-1][0]["answers"]["503"]
    return report


@pytest.mark.parametrize("queued", [0, 1], ids=["lock", "queue"])
def test_sentinel_survives_the_death_of_the_master(sentinel: SentinelRedis, queued: int) -> None:
    """It serves the locks and queued sales."""
    name = "queued" if queued else "direct"
    report = sell_with_sentinel(name, sentinel, Step(sentinel.master.kill), queued=queued)
    assert report["lost"] == 0


def test_reservations_that_no_replica_has_are_lost(sentinel: SentinelRedis) -> None:
    """Their units are on sale again: the ledger decides, not Redis."""
    cut, kill = Step(CutReplication(sentinel.replica).inject), Step(sentinel.master.kill)
    report = sell_with_sentinel("cut off", sentinel, cut, kill, queued=1, is_idle=True)
    assert report["lost"] > 0


def test_death_of_a_node_of_a_cluster_stops_only_its_sales() -> None:
    """The masters agree after cluster-node-timeout, a second; then they elect the replica."""
    tags = "2", "3"  # the primary keys of the sales, after the direct sale of the shop
    first, second = (slot_of(tag) * 3 // SLOTS for tag in tags)
    assert first != second
    with RedisCluster() as cluster:
        kill = Step(cluster.masters[first].kill)
        report = sell("Redis Cluster", cluster, REDIS[1:], kill, within=5.0, queued=len(tags))
    [(stopped, other)] = report["steps"]
    assert (stopped["tag"], other["tag"]) == tags
    assert {*stopped["answers"]} == {"202", "503"}
    assert {*other["answers"]} == {"202"}
    assert other["gap"] < stopped["gap"] / 2
    assert report["lost"] == 0
