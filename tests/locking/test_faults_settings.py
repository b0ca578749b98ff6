"""FAULTS row 18: a Redis that may evict locks is rejected at start-up."""

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from devservers import Redis, start_all, stop_all


@pytest.mark.faults(row=18, backend="redis, redlock", fired="allkeys-lru; control: noeviction")
@pytest.mark.parametrize("evicts", [True, False], ids=["evicting", "control: noeviction"])
def test_row_18_check_refuses_stores_that_evict(settings, evicts: bool) -> None:
    config = ["--maxmemory", "50mb", "--maxmemory-policy"]
    config.append("allkeys-lru" if evicts else "noeviction")
    servers = [Redis(config=config) for _ in range(3)]
    urls = [server.url for server in servers]
    redis = {**settings.LOCKS["redis"], "LOCATION": urls[0]}
    redlock = {**settings.LOCKS["redlock"], "LOCATION": urls}
    settings.LOCKS = {"redis": redis, "redlock": redlock}
    start_all(servers)
    try:
        if not evicts:
            call_command("check")
            return
        with pytest.raises(SystemCheckError) as refused:
            call_command("check")
    finally:
        stop_all(servers)
    assert str(refused.value).count("(locking.E021)") == 1 + 3  # redis, and redlock's masters
    assert all(str(server.port) in str(refused.value) for server in servers)
