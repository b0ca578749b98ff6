"""A Redis Cluster of three masters with two queued sales: the master of one is killed."""

import pytest

from loadtest.kernel.topology import Topology
from locking.backends.redis.cluster import slot_of
from tests.devservers.redis_groups import SLOTS, RedisCluster
from tests.high_availability.sale import Step, carry

MAX_GAP = 5.0
"""Seconds: cluster-node-timeout is one; then the masters agree and elect the replica."""
TAGS = ("2", "3")
"""The hash tags of the sales: their primary keys, after the direct sale of the shop."""


@pytest.mark.long
def test_death_of_a_node_stops_only_its_sales() -> None:
    first, second = (slot_of(tag) * 3 // SLOTS for tag in TAGS)
    assert first != second
    with RedisCluster() as cluster:
        topology = Topology(
            database="mariadb",
            servers=("redis",),
            is_deployed=True,
            environ={"QUEUE_REDIS_URL": cluster.url},
        )
        kill = Step(cluster.masters[first].kill)
        report = carry("Redis Cluster", topology, kill, queued=len(TAGS))
    [(stopped, other)] = report["steps"]
    assert (stopped["tag"], other["tag"]) == TAGS
    assert stopped["answers"]["503"]
    assert {*stopped["answers"]} == {"202", "503"}
    assert stopped["gap"] < MAX_GAP
    assert {*other["answers"]} == {"202"}
    assert other["gap"] < stopped["gap"] / 2
    assert report["lost"] == 0
