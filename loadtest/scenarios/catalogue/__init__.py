"""The classic failures of locks and flash sales, in the order of the course that explains them.

A scenario can be run once a step of `course.toml` names it.
"""

from loadtest.scenarios.catalogue import (  # noqa: F401 - each registers its scenarios
    backend_switch,
    flash_sale,
    holders,
    no_lock,
    recipes,
    redis_servers,
    retries,
    waiters,
)
from loadtest.scenarios.course import COURSE
from loadtest.scenarios.scenario import REGISTERED, Scenario

SCENARIOS: dict[str, Scenario] = {
    name: REGISTERED[name] for step in COURSE for name in step.scenarios
}
