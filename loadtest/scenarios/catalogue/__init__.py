"""The classic lock failures, in the order in which pages and commands list them."""

from loadtest.scenarios.catalogue import (
    backend_switch,
    holders,
    mysql_row,
    redis_recipes,
    redis_servers,
    waiters,
)
from loadtest.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        holders.KILLED,
        holders.PAUSED,
        holders.GIL_HELD,
        redis_servers.FAILOVER,
        redis_servers.AMNESIA,
        redis_servers.CLOCK_JUMP,
        holders.WORK_OUTLASTS_LEASE,
        waiters.HERD,
        waiters.POLLING,
        holders.RELEASE_BEFORE_COMMIT,
        backend_switch.SWITCH,
        redis_recipes.NO_EXPIRY,
        redis_recipes.CRASH_BEFORE_EXPIRE,
        redis_recipes.DELETE_SUCCESSOR,
        mysql_row.ROW_LEFT,
    )
}
