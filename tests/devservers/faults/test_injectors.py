"""An injector says whether it struck every server that it names."""

from __future__ import annotations

from pathlib import Path

from devservers import Redis
from devservers.faults.clock import Clock
from devservers.faults.injectors import ClockJump


def test_a_clock_jumps_only_where_it_drives(redis_server: Redis, tmp_path: Path) -> None:
    clock, driven = Clock(tmp_path), Redis()
    clock.drive(driven)
    with driven:
        jump = ClockJump([clock], [driven], 31)
        jump.inject()
        assert jump.injected
        jump.recover()
        elsewhere = ClockJump([clock], [driven, redis_server], 31)
        elsewhere.inject()
        assert not elsewhere.injected
