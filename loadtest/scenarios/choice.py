"""Recommend a lock for the stores and the needs of a project, from what the backends declare."""

import re
from dataclasses import dataclass
from math import inf
from typing import Any

from inventory.models import WriteStrategy
from loadtest.bench.locks.properties import FAILURES, OUTCOMES, capabilities, figures, outcome
from loadtest.load.plan import Plan
from loadtest.scenarios.catalogue import SCENARIOS
from locking.backends.database.backend import with_queue
from locking.claims import Capabilities

LOCKS = {
    "process": ("process",),
    "mysql": ("mysql_session", "database"),
    "postgresql": ("postgresql_session", "database"),
    "postgresql-pooled": ("database",),
    "sqlite": ("database",),
    "redis": ("redis",),
    "redis-masters": ("redlock", "redis"),
    "zookeeper": ("zookeeper",),
}
"""The locks that each store makes possible; a pooler such as PgBouncer shares sessions."""
RUN_ON = {"mysql": "mariadb", "postgresql": "postgresql", "postgresql-pooled": "postgresql"}
"""The database of `lab run` for a store; sqlite for others."""
COSTS = ("pairs/s", "hand-off p50 ms", "p99 ms", "CPU us")
"""The columns of docs/measurements/locks.md that a recommendation names."""
HARMLESS = ("session", "lease", "survives", "unaffected")
"""The outcomes of a failure in which no two holders write."""
LOADS = {"race": "none", "killed": "kill-holder", "paused": "pause-holder"}
"""The faults of `lab run` that show these needs."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """The stores of a project, and its needs."""

    stores: tuple[str, ...]
    survive: tuple[str, ...]
    """Failures in which no two holders may write."""
    is_quick: bool
    """A release wakes the next waiter."""
    has_fence: bool
    """The data checks the token of each write."""

    def locks(self) -> dict[str, Capabilities]:
        """Return the locks that the stores make possible, with their capabilities there."""
        found = {alias: capabilities()[alias] for one in self.stores for alias in LOCKS[one]}
        if {"mysql", "postgresql"} & set(self.stores):
            found["database"] = with_queue(found["database"])
        return found

    def effect(self, declared: Capabilities, failure: str) -> tuple[bool, str]:
        """Return whether no two holders write in a failure, and what happens."""
        name = outcome(declared, failure)
        if name in HARMLESS or not declared.fencing:
            return name in HARMLESS, OUTCOMES[name]
        if not self.has_fence:
            return False, f"{OUTCOMES[name]}; the data checks no token"
        if failure == "failover" and not declared.tokens_outlive_failover:
            return False, f"{OUTCOMES[name]}; its tokens may fall"
        late = "" if failure == "paused" else "; the fence rejects the late write"
        return True, OUTCOMES[name] + late

    def unmet(self, declared: Capabilities) -> list[str]:
        """Return a sentence for each need that a lock does not meet."""
        effects = [(FAILURES[one], *self.effect(declared, one)) for one in self.survive]
        found = [f"{title}: {text}" for title, is_safe, text in effects if not is_safe]
        return found + ["its waiters poll"] * (self.is_quick and not declared.wakes_waiters)

    def cost(self, alias: str) -> dict[str, str]:
        """Return the figures of a lock; none if it was not measured on these stores."""
        if alias == "database" and "mysql" not in self.stores:
            alias = "postgresql" if "postgresql" in self.stores else "sqlite"
        found = figures(alias)
        return {name: found[name] for name in COSTS if name in found}

    def fit(self) -> list[str]:
        """Return the locks that meet all needs, the best one first.

        No server is best, then fewest failures with two holders, then the lowest measured cost.
        """
        measure = "hand-off p50 ms" if self.is_quick else "CPU us"

        def rank(alias: str) -> tuple[float, ...]:
            declared = capabilities()[alias]
            exposed = sum(outcome(declared, failure) not in HARMLESS for failure in FAILURES)
            figure = float(self.cost(alias).get(measure, inf))
            return declared.exclusion == "machines", exposed if self.survive else 0, figure

        return sorted((one for one in self.locks() if not self.unmet(self.locks()[one])), key=rank)


def choose(project: Project) -> dict[str, Any]:
    """Return the recommended lock with its cost and its proof, and why the others were not."""
    fit, locks = project.fit(), project.locks()
    rejected = {}
    for alias in capabilities():
        stores = " or ".join(store for store, aliases in LOCKS.items() if alias in aliases)
        if alias not in locks:
            rejected[alias] = [f"needs {stores}" if stores else "excludes nothing"]
        elif alias not in fit[:1]:
            cost = ", ".join(f"{value} {name}" for name, value in project.cost(alias).items())
            second = f"meets all needs, second choice; {cost or 'not measured'}"
            rejected[alias] = project.unmet(locks[alias]) or [second]
    if not fit:
        return {"recommended": None, "rejected": rejected}
    needs = ["race", *project.survive, *["waiters"] * project.is_quick]
    best = {
        "lock": fit[0],
        "summary": locks[fit[0]].summary,
        "failures": {FAILURES[one]: project.effect(locks[fit[0]], one)[1] for one in FAILURES},
        "cost": project.cost(fit[0]),
        "runs": [run for need in needs for run in _runs(fit[0], need, project)],
    }
    return {"recommended": best, "rejected": rejected}


def _runs(alias: str, need: str, project: Project) -> list[dict[str, Any]]:
    """Return the runs of this lock for a need, else those that show the failure of another."""
    scenarios = [one for one in SCENARIOS.values() if one.fault == need]
    own = [one for one in scenarios if alias in re.findall(r"\w+", one.repaired)]
    commands = [f"manage.py lab scenario {one.name}" for one in own or scenarios]
    store = next(RUN_ON.get(one, "sqlite") for one in project.stores if alias in LOCKS[one])
    if is_load := need in LOADS and not own and (need == "race" or alias != "process"):
        plan = Plan(
            backends=("none", alias) if need == "race" else (alias,),
            disciplines=(WriteStrategy.FENCED if need == "paused" else WriteStrategy.NAIVE,),
            fault=LOADS[need],
            processes=1 if alias == "process" else 4,
            store=store,
        )
        commands = [plan.command()]
    return [{"need": need, "is_proof": bool(own or is_load), "command": one} for one in commands]
