"""The classic lock failures, in the order in which the field learned them."""

from loadtest.scenarios.catalogue import (
    backend_switch,
    holders,
    no_lock,
    recipes,
    redis_servers,
    waiters,
)
from loadtest.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        no_lock.RACE,
        no_lock.ONE_PROCESS,
        recipes.NO_EXPIRY,
        recipes.CRASH_BEFORE_EXPIRE,
        holders.WORK_OUTLASTS_LEASE,
        recipes.DELETE_SUCCESSOR,
        holders.KILLED,
        holders.PAUSED,
        holders.GIL_HELD,
        redis_servers.FAILOVER,
        redis_servers.CLOCK_JUMP,
        redis_servers.AMNESIA,
        waiters.HERD,
        waiters.POLLING,
        recipes.ROW_LEFT,
        holders.RELEASE_BEFORE_COMMIT,
        backend_switch.SWITCH,
    )
}
