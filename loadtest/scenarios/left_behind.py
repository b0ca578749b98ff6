"""What a crash leaves in the store, and how long the next one waits for it."""

import time
from typing import Any

from loadtest.faults.waiting import FaultFailed
from loadtest.scenarios.testbed import Stage

NAME = "sale:1"
LOOK = 0.2
"""Seconds that the next one keeps it, so that the picture shows it."""
PATIENCE = 2.0
"""Seconds after which a waiter is taken to wait for ever; twice the longest lease here."""


def crash_and_wait(
    stage: Stage,
    alias: str,
    *,
    ttl: float,
    at: str = "",
    patience: float = PATIENCE,
    names: tuple[str, str] = ("buyer A", "buyer B"),
) -> dict[str, Any]:
    """The first takes the lock and is killed, at the fail point `at` or holding; another waits."""
    holder, waiter = (stage.actor(name) for name in names)
    if at:
        holder.start("acquire", alias=alias, name=NAME, timeout=5, ttl=ttl, fault="kill", at=at)
        holder.struck()
        stage.kept(names[0])
    else:
        if not holder.call("acquire", alias=alias, name=NAME, timeout=5, ttl=ttl)["ok"]:
            raise FaultFailed("the lock was not free")
        stage.kill(holder, names[0])
    told = waiter.call("acquire", alias=alias, name=NAME, timeout=patience, ttl=ttl)
    if told["ok"]:
        stage.until_passed(time.monotonic(), LOOK)
        waiter.call("release", name=NAME)
    return {
        "ttl": ttl,
        "waited": round(told["seconds"], 2),
        "granted": int(told["ok"]),
        "broke": not told["ok"],
    }
