"""A third-party backend in memory whose calls can be made to fail by a test.

It is named by its dotted path, as in settings, and nothing in `locking` knows it. This proves that
the contract of `locking.backends.base` is enough to write a backend.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from locking.backends.base import Backend
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockLost, LockUnavailable
from locking.handler import create

PATH = "tests.locking.scripted.ScriptedBackend"


class ScriptedBackend(Backend):
    """Leases in a dictionary; `then("extend", step)` runs `step` before the next extension."""

    capabilities = Capabilities(
        summary="In memory, with leases.",
        exclusion="process",
        expires=True,
        fencing=True,
        counts_in_store=True,
        hands_over=True,
        wakes_waiters=True,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.script: dict[str, deque[Callable[[], object]]] = {}
        self.calls: list[tuple[str, float]] = []
        self.tokens = 0
        self.ignores_cancel = False
        """Grant even if the claim was cancelled."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self._changed = threading.Condition()
        self._rows: dict[str, dict[str, Any]] = {}

    def then(self, call: str, *steps: Callable[[], object]) -> None:
        """Run `steps` before the next calls of `call`; a step may raise."""
        self.script.setdefault(call, deque()).extend(steps)

    def times(self, call: str) -> list[float]:
        """Return the times at which `call` was called."""
        return [at for name, at in self.calls if name == call]

    def _reached(self, call: str) -> None:
        self.calls.append((call, time.monotonic()))
        steps = self.script.get(call)
        if steps:
            steps.popleft()()

    def _row(self, claim: Claim) -> dict[str, Any]:
        row = self._rows.get(claim.name)
        if row is None or row["owner"] != claim.owner or row["ends"] <= time.monotonic():
            raise LockLost
        return row

    def _is_free(self, name: str) -> bool:
        row = self._rows.get(name)
        return row is None or row["ends"] <= time.monotonic()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        self._reached("acquire")
        deadline = time.monotonic() + timeout
        claim.interrupt = self._wake
        with self._changed:
            while not (self._is_cancelled(claim) or self._is_free(claim.name)):
                ends = self._rows[claim.name]["ends"]
                pause = min(deadline, ends) - time.monotonic()
                if deadline <= time.monotonic():
                    return None
                self._changed.wait(max(pause, 0.001))
            if self._is_cancelled(claim):
                return None
            self.tokens += 1
            ends = time.monotonic() + claim.ttl
            row = {"owner": claim.owner, "token": self.tokens, "ends": ends, "count": 1}
            self._rows[claim.name] = row
            return Grant(self.tokens, ends)

    def _is_cancelled(self, claim: Claim) -> bool:
        return claim.cancelled.is_set() and not self.ignores_cancel

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def release(self, claim: Claim, token: int) -> None:
        self._reached("release")
        with self._changed:
            self._row(claim)
            del self._rows[claim.name]
            self._changed.notify_all()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        self._reached("extend")
        with self._changed:
            row = self._row(claim)
            row["ends"] = time.monotonic() + ttl
            return float(row["ends"])

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        self._reached("set_depth")
        with self._changed:
            row = self._row(claim)
            row["count"] = depth

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        self._reached("take_over")
        with self._changed:
            row = self._rows.get(claim.name, {})
            if row.get("owner") == claim.owner:
                return Grant(row["token"], row["ends"])
            if (row.get("owner"), row.get("token"), row.get("count")) != (owner, token, 0):
                raise LockLost
            self.tokens += 1
            row.update(owner=claim.owner, token=self.tokens, count=1)
            row["ends"] = time.monotonic() + claim.ttl
            return Grant(self.tokens, row["ends"])

    def inspect(self) -> list[Held]:
        self._reached("inspect")
        with self._changed:
            now = time.monotonic()
            return [
                Held(
                    name=name,
                    owner=row["owner"],
                    token=row["token"],
                    expires_in=row["ends"] - now,
                    count=row["count"],
                )
                for name, row in self._rows.items()
                if row["ends"] > now
            ]

    def probe(self) -> None:
        self._reached("probe")

    def break_lock(self, name: str) -> bool:
        with self._changed:
            self._changed.notify_all()
            return self._rows.pop(name, None) is not None


def unavailable() -> None:
    """Fail a step as if the store did not reply."""
    raise LockUnavailable


def scripted(**settings: Any) -> ScriptedBackend:
    """Return a new backend, created as for an entry of LOCKS."""
    return create("scripted", {"BACKEND": PATH, **settings})


def waiters(backend: Backend) -> int:
    """Return the number of waiters of all locks."""
    return sum(held.waiters or 0 for held in backend.inspect())
