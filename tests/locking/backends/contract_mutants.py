"""Wrong backends that the contract must reject; `test_contract_mutants` runs it on each of them.

Each differs from a correct backend in one method.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from locking.backends.redis.backend import RedisBackend
from locking.claims import Claim, Grant, Held
from locking.testing.contract import Contract
from tests.locking.backends.redis.test_contract_redis import TestRedis as OnRedis
from tests.locking.backends.test_contract_local import LocalBackend

HERE = "tests.locking.backends.contract_mutants"


class ExtendNeverLost(LocalBackend):
    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        return time.monotonic() + ttl


class ExtendPromisesTenfold(LocalBackend):
    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        return super().extend(claim, token, ttl) + 9 * ttl


class ExtendDoesNothing(LocalBackend):
    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        self._row(claim)
        return time.monotonic() + ttl


class AcquirePromisesTenfold(LocalBackend):
    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        grant = super().acquire(claim, timeout)
        return grant and replace(grant, deadline=grant.deadline + 9 * claim.ttl)


class ReleaseIgnoresOwner(LocalBackend):
    def release(self, claim: Claim, token: int) -> None:
        with self._changed:
            self._rows.pop(claim.name, None)
            self._changed.notify_all()


class ReleaseWakesNoOne(LocalBackend):
    def release(self, claim: Claim, token: int) -> None:
        with self._changed:
            self._row(claim)
            del self._rows[claim.name]


class TokenStaysEqual(LocalBackend):
    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        grant = super().acquire(claim, timeout)
        return grant and replace(grant, token=1)


class LeaseNeverEnds(LocalBackend):
    def _is_free(self, name: str) -> bool:
        return name not in self._rows


class TryWaits(LocalBackend):
    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        return super().acquire(claim, timeout or 1)


class CancelledWaitIsGranted(LocalBackend):
    def _is_cancelled(self, claim: Claim) -> bool:
        return False


class NamesFoldCase(LocalBackend):
    @contextmanager
    def _folded(self, claim: Claim) -> Iterator[None]:
        claim.name = claim.name.lower()
        yield

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        with self._folded(claim):
            return super().acquire(claim, timeout)


class InspectForgetsDepth(LocalBackend):
    def inspect(self) -> list[Held]:
        return [replace(held, count=1) for held in super().inspect()]


class BreakDoesNothing(LocalBackend):
    def break_lock(self, name: str) -> bool:
        return name in self._rows


class PollsInstead(RedisBackend):
    """Declares that waiters are woken, but asks every 50 ms."""

    def _wait_for_message(self, claim: Claim, connection: Any, until: float) -> Any:
        return super()._wait_for_message(claim, connection, min(until, time.monotonic() + 0.05))


class PlaceIsNotKept(RedisBackend):
    """A waiter leaves its place in the queue when it has waited for its own ttl."""

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        end = time.monotonic() + timeout
        while True:
            left = max(0.0, end - time.monotonic())
            grant = super().acquire(claim, min(left, claim.ttl))
            if grant or left <= claim.ttl or math.isnan(left):
                return grant


def suite(mutant: type, base: type[Contract] = Contract) -> type[Contract]:
    """Return the contract for a mutant."""
    return type(f"Test{mutant.__name__}", (base,), {"path": f"{HERE}.{mutant.__name__}"})


LOCAL = [
    ExtendNeverLost,
    ExtendPromisesTenfold,
    ExtendDoesNothing,
    AcquirePromisesTenfold,
    ReleaseIgnoresOwner,
    ReleaseWakesNoOne,
    TokenStaysEqual,
    LeaseNeverEnds,
    TryWaits,
    CancelledWaitIsGranted,
    NamesFoldCase,
    InspectForgetsDepth,
    BreakDoesNothing,
]
ON_REDIS = [PollsInstead, PlaceIsNotKept]
SUITES = {one.__name__: suite(one) for one in LOCAL}
SUITES |= {one.__name__: suite(one, OnRedis) for one in ON_REDIS}
globals().update({cls.__name__: cls for cls in SUITES.values()})


class TestControl(Contract):
    """The backend that the mutants are made of."""

    path = "tests.locking.backends.test_contract_local.LocalBackend"


del OnRedis  # pytest would collect it
