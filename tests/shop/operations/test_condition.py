"""The sentence that opens the operations page, for every state of the system."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from locking.models import LockPolicy
from shop.administration.audit import Breach
from shop.operations.condition import assess
from shop.operations.live import LiveState
from shop.operations.probes import ProbeResult
from shop.operations.rates import LastMinute, Series

NOW = datetime(2026, 11, 22, 4, 6, 40, tzinfo=UTC)
FAILED, OK = ProbeResult(error="ConnectionError"), ProbeResult(ms=1.0)
QUIET = Series([])


def stores(*down: str) -> dict[str, dict[str, ProbeResult]]:
    """Return the shop's stores and three locks; `down` names some, a lock as "lock redis"."""
    shop, backends = ("database", "redis", "cache"), ("database", "redis", "zookeeper")
    return {
        "stores": {name: FAILED if name in down else OK for name in shop},
        "locks": {name: FAILED if f"lock {name}" in down else OK for name in backends},
    }


def minute(**processes: int) -> LastMinute:
    return LastMinute(
        orders=QUIET,
        wait_ms=QUIET,
        refusals=QUIET,
        processes=Counter(processes),
        last=int(NOW.timestamp()),
    )


def policy(backend: str = "redis", strategy: str = "conditional", **more: Any) -> LockPolicy:
    return LockPolicy(backend=backend, mode=strategy, changed_at=NOW, **more)


def state(**changes: Any) -> LiveState:
    """Return the state of a healthy shop with three open sales, with changes."""
    healthy: dict[str, Any] = {
        **stores(),
        "policy": policy(),
        "open_sales": 3,
        "last_job_at": NOW - timedelta(seconds=4),
        "audit": (NOW - timedelta(seconds=12), []),
        "minute": minute(web=2, consumer=1),
    }
    return LiveState(as_of=NOW, **{**healthy, **changes})


DATABASE = {"mysql": "MariaDB", "sqlite": "SQLite", "postgresql": "PostgreSQL"}[connection.vendor]
WRONG = SimpleNamespace(sale="phone", ok=False, breaches=(Breach("oversold: 7 promised of 5"),))
DRAIN = {"next_backend": "database", "next_mode": "conditional", "changed_by": "amy"}
LATE = {"last_job_at": NOW - timedelta(seconds=31)}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "normal": ({}, "good", "Selling normally: 3 sales are open."),
    "one sale": ({"open_sales": 1}, "good", "Selling normally: 1 sale is open."),
    "no sale": ({"open_sales": 0}, "good", "Ready: no sale is open."),
    "draining": ({"policy": policy(**DRAIN)}, "warn", "Switching from Redis + conditional to "),
    "database": (
        {**stores("database", "lock database"), "policy": None, "minute": None},
        "bad",
        f"Purchases are failing: {DATABASE} stopped responding.",
    ),
    "active lock": (
        {**stores("redis", "lock redis"), "minute": None},
        "bad",
        "Purchases are failing: the active lock (Redis) stopped responding",
    ),
    "redis": (
        {**stores("redis", "lock redis"), "policy": policy("database"), "minute": None},
        "warn",
        "Redis stopped responding",
    ),
    "redis of a queued sale": (
        {**stores("redis"), "policy": policy("database"), "queued_sales": 1},
        "bad",
        "Redis stopped responding",
    ),
    "cache": (stores("cache"), "warn", "The cache stopped responding: pages"),
    "lock that is not active": (stores("lock zookeeper"), "good", "Selling normally"),
    "server of the active lock": (
        {"policy": policy("redlock"), "nodes_down": ["10.0.0.3:6379"]},
        "warn",
        "A server of the active lock (RedLock) stopped responding: 10.0.0.3:6379.",
    ),
    "transient": ({"policy": None, "audit": None}, "warn", "A store did not respond in time."),
    "mismatch": ({"audit": (NOW, [WRONG])}, "bad", "Stock mismatch: phone."),
    "no lock": ({"policy": policy("none", "naive")}, "bad", "Overselling is possible: no lock"),
    "no lock, safe writes": ({"policy": policy("none")}, "good", "Selling normally"),
    "naive": ({"policy": policy("redis", "naive")}, "warn", "Overselling is possible if the lock"),
    "worker": (LATE, "warn", "The worker has stopped: no job has finished since 12:06:09."),
    "beat": ({**LATE, "minute": minute(worker=1)}, "warn", "Scheduled jobs have stopped: no job"),
    "no worker yet": ({"last_job_at": None}, "warn", "The worker has stopped: no job has finished"),
    "consumer": ({"queued_sales": 1, "minute": minute(web=2)}, "bad", "No consumer is running"),
    "consumer that hangs": (
        {"queued_sales": 1, "oldest_reservation": 31.0},
        "bad",
        "Orders of queued sales are late: the oldest reservation has waited 31 s.",
    ),
    "consumer without a queued sale": ({"minute": minute(web=2)}, "good", "Selling normally"),
    "rates unknown": ({"queued_sales": 1, "minute": None}, "good", "Selling normally"),
}
"""What differs from a healthy shop, the level, and the begin of the sentence."""


@pytest.mark.parametrize(("changes", "level", "sentence"), CASES.values(), ids=CASES)
def test_first_sentence_names_the_state(changes, level, sentence):
    first = assess(state(**changes))[0]
    assert (first.level, first.text[: len(sentence)]) == (level, sentence)


def test_normal_state_has_facts():
    (only,) = assess(state())
    assert only.advice == "Active lock: Redis · stock audit passed 12 s ago"


def test_worst_comes_first_and_causes_before_consequences():
    """While Redis is down no job can run: the stopped worker is not listed."""
    found = assess(
        state(
            **stores("redis", "lock redis"),
            policy=policy("redis", "naive", **DRAIN),
            audit=(NOW, [WRONG]),
            last_job_at=None,
            minute=None,
        )
    )
    assert [(one.level, one.text.partition(":")[0].partition(" if ")[0]) for one in found] == [
        ("bad", "Purchases are failing"),
        ("bad", "Stock mismatch"),
        ("warn", "Redis stopped responding"),
        ("warn", "Overselling is possible"),
        ("warn", "Switching from Redis + naive to database + conditional"),
    ]


def test_remedy_leads_to_a_lock_that_responds():
    down = assess(state(**stores("redis", "lock redis", "lock database"), minute=None))[0]
    assert (down.remedy, down.link) == (
        "Switch to ZooKeeper…",
        "?backend=zookeeper&mode=conditional#switch",
    )
    none = ("lock redis", "lock database", "lock zookeeper")
    assert assess(state(**stores(*none)))[0].link == ""
    naive = assess(state(policy=policy("redis", "naive")))[0]
    assert naive.link == "?backend=redis&mode=conditional#switch", "the same lock, safe writes"


def test_outage_names_only_public_facts():
    """The state without a policy, as people see it whose account cannot be read."""
    only = LiveState(as_of=NOW, stores=stores("database")["stores"])
    (condition,) = assess(only)
    assert condition.level == "bad"
    assert "lock policy" in condition.advice
