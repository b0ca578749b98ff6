"""The classic lock failures, in the order in which the field learned them."""

from loadtest.scenarios.catalogue import (
    backend_switch,
    holders,
    mysql_row,
    no_lock,
    redis_recipes,
    redis_servers,
    waiters,
)
from loadtest.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        no_lock.RACE,
        no_lock.ONE_PROCESS,
        redis_recipes.NO_EXPIRY,
        redis_recipes.CRASH_BEFORE_EXPIRE,
        holders.WORK_OUTLASTS_LEASE,
        redis_recipes.DELETE_SUCCESSOR,
        holders.KILLED,
        holders.PAUSED,
        holders.GIL_HELD,
        redis_servers.FAILOVER,
        redis_servers.CLOCK_JUMP,
        redis_servers.AMNESIA,
        waiters.HERD,
        waiters.POLLING,
        mysql_row.ROW_LEFT,
        holders.RELEASE_BEFORE_COMMIT,
        backend_switch.SWITCH,
    )
}
