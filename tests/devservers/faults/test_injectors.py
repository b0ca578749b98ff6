"""Each injector strikes a real server and says so; where it hits nothing it does not say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from devservers import Redis
from devservers.faults.clock import Clock
from devservers.faults.injectors import ClockJump, CutReplication, Disturb
from devservers.faults.waiting import until


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def value(server: Redis) -> str | None:
    with client.Redis.from_url(server.url, decode_responses=True) as direct:
        kept: str | None = direct.get("k")
        return kept


def keep(server: Redis) -> None:
    with client.Redis.from_url(server.url) as direct:
        direct.set("k", "v")


def test_killed_servers_come_back_empty(redis: Redis) -> None:
    keep(redis)
    fault = Disturb([redis], "kill")
    fault.inject()
    assert fault.injected
    with pytest.raises(client.ConnectionError):
        value(redis)
    fault.recover()
    assert value(redis) is None


def test_a_cut_replica_misses_what_follows_and_takes_writes_once_promoted(redis: Redis) -> None:
    with Redis(replica_of=redis) as replica:
        keep(redis)
        until(lambda: value(replica), "replication")
        cut = CutReplication(replica)
        cut.inject()
        assert cut.injected
        with client.Redis.from_url(redis.url) as direct:
            direct.set("k", "later")
        assert value(replica) == "v"
        cut.promote()
        keep(replica)


def test_a_clock_jumps_only_where_it_drives(redis: Redis, tmp_path: Path) -> None:
    clock, driven = Clock(tmp_path), Redis()
    clock.drive(driven)
    with driven:
        jump = ClockJump([clock], [driven], 31)
        jump.inject()
        assert jump.injected
        jump.recover()
        elsewhere = ClockJump([clock], [driven, redis], 31)
        elsewhere.inject()
        assert not elsewhere.injected
