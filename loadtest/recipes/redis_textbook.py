"""Three textbook locks on one Redis, each with its well-known flaw. For the lab only.

    L5  SETNX, then DEL          a crashed holder blocks every other client forever
    L6  SETNX, EXPIRE, then DEL  a crash between the first two blocks every other client forever
    L7  SET NX PX, then DEL      a late holder deletes its successor's lock

None of them checks the owner on release, and all waiters poll. `locking.backends.redis` has none of
these flaws.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from typing import Any, ClassVar

from redis import Redis

from locking.backends.base import Backend
from locking.backends.clock_tokens import clock_token
from locking.claims import Capabilities, Claim, Grant, Held
from locking.failpoints import reach

POLL = 0.02
"""Mean seconds between two attempts of a waiter."""


def _capabilities(flaw: str, *, expires: bool = True) -> Capabilities:
    return Capabilities(
        summary=f"Textbook: {flaw}.", exclusion="machines", expires=expires, lists_holders=True
    )


class _Textbook(Backend):
    """The three share polling and an unconditional DEL."""

    prefix: ClassVar[str]

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._client = Redis.from_url(str(self.location), decode_responses=True)

    @abstractmethod
    def _take(self, key: str, claim: Claim) -> bool:
        """Try to acquire once."""

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Try again after a random pause, until `timeout`."""
        until = time.monotonic() + timeout
        while not claim.cancelled.is_set():
            sent = time.monotonic()
            if self._take(self.prefix + claim.name, claim):
                expires = self.capabilities.expires
                return Grant(clock_token(), sent + claim.ttl if expires else float("inf"))
            if sent >= until:
                break
            claim.cancelled.wait(min(random.uniform(0, 2 * POLL), until - sent))
        return None

    def release(self, claim: Claim, token: int) -> None:
        """Delete the key without checking its owner."""
        self._client.delete(self.prefix + claim.name)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Renew the key without checking its owner."""
        sent = time.monotonic()
        self._client.pexpire(self.prefix + claim.name, round(1000 * ttl))
        return sent + ttl

    def inspect(self) -> list[Held]:
        """Return the existing keys."""
        locks = []
        for key in sorted(set(self._client.scan_iter(f"{self.prefix}*"))):
            owner, left = self._client.get(key), self._client.pttl(key)
            if owner is not None:
                ends = left / 1000 if left >= 0 else None
                locks.append(
                    Held(name=key.removeprefix(self.prefix), owner=str(owner), expires_in=ends)
                )
        return locks

    def probe(self) -> None:
        """Send PING."""
        self._client.ping()

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()


class SetnxBackend(_Textbook):
    """L5: the key does not expire, so a crashed holder keeps the lock."""

    capabilities = _capabilities(
        "a crashed holder blocks every other client forever", expires=False
    )
    prefix = "textbook:setnx:"

    def _take(self, key: str, claim: Claim) -> bool:
        return bool(self._client.setnx(key, claim.owner))


class SetnxExpireBackend(_Textbook):
    """L6: two commands, and a crash fits between them."""

    capabilities = _capabilities(
        "a crash between SETNX and EXPIRE blocks every other client forever"
    )
    prefix = "textbook:setnx-expire:"

    def _take(self, key: str, claim: Claim) -> bool:
        if not self._client.setnx(key, claim.owner):
            return False
        reach("redis_setnx_expire.between")
        self._client.pexpire(key, round(1000 * claim.ttl))
        return True


class SetExpireBackend(_Textbook):
    """L7: the key expires, but a late holder deletes its successor's key."""

    capabilities = _capabilities("a late holder deletes its successor's lock")
    prefix = "textbook:set-px:"

    def _take(self, key: str, claim: Claim) -> bool:
        return bool(self._client.set(key, claim.owner, nx=True, px=round(1000 * claim.ttl)))
