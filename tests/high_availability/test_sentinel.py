"""Redis behind Sentinels: the master of the locks and of queued sales is killed in mid-sale."""

from collections.abc import Iterator

import pytest

from devservers.faults.injectors import CutReplication
from loadtest.kernel.topology import Topology
from loadtest.resilience.shop import Report
from tests.devservers.redis_groups import SentinelRedis
from tests.high_availability.sale import Step, carry

pytestmark = pytest.mark.long
MAX_GAP = 4.5
"""Seconds: 0.5 to notice (down-after-milliseconds), 3 to promote (failover-timeout), and one."""


@pytest.fixture
def servers() -> Iterator[SentinelRedis]:
    with SentinelRedis() as servers:
        yield servers


def sell(name: str, servers: SentinelRedis, *steps: Step, **asked: object) -> Report:
    environ = {"LOCK_REDIS_URL": servers.url, "QUEUE_REDIS_URL": servers.url}
    topology = Topology(database="mariadb", servers=("redis",), is_deployed=True, environ=environ)
    report = carry(name, topology, *steps, **asked)
    assert servers.names(servers.replica)
    failover = report["steps"][-1][0]
    assert failover["gap"] < MAX_GAP
    assert {*failover["answers"]} <= {"201", "202", "503"}
    assert failover["answers"]["503"]
    return report


@pytest.mark.parametrize("queued", [0, 1], ids=["lock", "queue"])
def test_sale_survives_the_death_of_the_master(servers: SentinelRedis, queued: int) -> None:
    name = f"Sentinel, {'queued' if queued else 'direct'}"
    report = sell(name, servers, Step(servers.master.kill), queued=queued)
    assert report["lost"] == 0


def test_reservations_that_no_replica_has_are_lost(servers: SentinelRedis) -> None:
    """Their units are on sale again: the ledger decides, not Redis."""
    cut = Step(CutReplication(servers.replica).inject)
    kill = Step(servers.master.kill)
    report = sell("Sentinel, cut off", servers, cut, kill, queued=1, is_idle=True)
    assert report["lost"] > 0
