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

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.clock_tokens import clock_token
from locking.backends.redis.connection import Connection, milliseconds
from locking.backends.redis.pool import ConnectionPool
from locking.failpoints import reach

POLL = 0.02
"""Mean seconds between two attempts of a waiter."""


class _Textbook(Backend):
    """The three share polling and an unconditional DEL."""

    prefix: ClassVar[str]

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._pool = ConnectionPool(str(self.location))

    @abstractmethod
    def _take(self, connection: Connection, key: str, claim: Claim) -> bool:
        """Try to acquire once."""

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Try again after a random pause, until `timeout`."""
        until = time.monotonic() + timeout
        connection = self._pool.get()
        while not claim.cancelled.is_set():
            sent = time.monotonic()
            if self._take(connection, self.prefix + claim.name, claim):
                self._pool.give(connection)
                expires = self.capabilities.expires
                return Grant(clock_token(), sent + claim.ttl if expires else float("inf"))
            if sent >= until:
                break
            claim.cancelled.wait(min(random.uniform(0, 2 * POLL), until - sent))
        self._pool.give(connection)
        return None

    def release(self, claim: Claim, token: int) -> None:
        """Delete the key without checking its owner."""
        self._command("DEL", self.prefix + claim.name)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Renew the key without checking its owner."""
        sent = time.monotonic()
        self._command("PEXPIRE", self.prefix + claim.name, milliseconds(ttl))
        return sent + ttl

    def inspect(self) -> list[Held]:
        """Return the existing keys."""
        found, cursor = set[str](), "0"
        while True:
            cursor, keys = self._command("SCAN", cursor, "MATCH", f"{self.prefix}*")
            found.update(keys)
            if cursor == "0":
                break
        locks = []
        for key in sorted(found):
            owner, left = self._command("GET", key), self._command("PTTL", key)
            if owner is not None:
                ends = left / 1000 if left >= 0 else None
                locks.append(Held(name=key.removeprefix(self.prefix), owner=owner, expires_in=ends))
        return locks

    def probe(self) -> None:
        """Send PING."""
        self._command("PING")

    def break_lock(self, name: str) -> bool:
        """Delete the key, as an operator does after a crash."""
        return bool(self._command("DEL", self.prefix + name))

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _command(self, *command: str) -> Any:
        return self._pool.call(lambda connection: connection.command(*command))


class SetnxBackend(_Textbook):
    """L5: the key does not expire, so a crashed holder keeps the lock."""

    capabilities = Capabilities(
        summary="Textbook: a crashed holder blocks every other client forever.",
        exclusion="machines",
        lists_holders=True,
    )
    prefix = "textbook:setnx:"

    def _take(self, connection: Connection, key: str, claim: Claim) -> bool:
        return bool(connection.command("SETNX", key, claim.owner))


class SetnxExpireBackend(_Textbook):
    """L6: two commands, and a crash fits between them."""

    capabilities = Capabilities(
        summary="Textbook: a crash between SETNX and EXPIRE blocks every other client forever.",
        exclusion="machines",
        expires=True,
        lists_holders=True,
    )
    prefix = "textbook:setnx-expire:"

    def _take(self, connection: Connection, key: str, claim: Claim) -> bool:
        if not connection.command("SETNX", key, claim.owner):
            return False
        reach("redis_setnx_expire.between")
        connection.command("PEXPIRE", key, milliseconds(claim.ttl))
        return True


class SetExpireBackend(_Textbook):
    """L7: the key expires, but a late holder deletes its successor's key."""

    capabilities = Capabilities(
        summary="Textbook: a late holder deletes its successor's lock.",
        exclusion="machines",
        expires=True,
        lists_holders=True,
    )
    prefix = "textbook:set-px:"

    def _take(self, connection: Connection, key: str, claim: Claim) -> bool:
        life = milliseconds(claim.ttl)
        return connection.command("SET", key, claim.owner, "NX", "PX", life) is not None
