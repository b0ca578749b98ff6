"""The requests of the redis backend: keys, scripts, and the clock that tokens are made of."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.checks import CheckMessage, Error

from locking.backends.base import Backend
from locking.backends.options import count, seconds, text
from locking.backends.pending_releases import PendingReleases
from locking.backends.redis.addresses import url_problem
from locking.backends.redis.cluster import Cluster, open_pool, slot_of, tagged, tags
from locking.backends.redis.connection import Connection, Script, Undo
from locking.backends.redis.scripts import KEEP, LAST_TICK, SALT_BITS, script_for
from locking.backends.redis.server_check import server_problem
from locking.claims import Claim
from locking.names import SHARED


class RedisRequests(Backend):
    """Runs the scripts of a lock on its server, again if a reply is lost."""

    known_options: ClassVar = {
        "PREFIX": text("lock:"),
        "SOCKET_TIMEOUT": seconds(1.0),
        "CONNECT_TIMEOUT": seconds(1.0),
        "REPLICAS": count(0),
    }

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._prefix = self.options["PREFIX"]
        self.pool = open_pool(
            str(self.location),
            timeout=float(self.options["SOCKET_TIMEOUT"]),
            connect_timeout=float(self.options["CONNECT_TIMEOUT"]),
            channel_prefix=f"{self._prefix}wake:",
        )
        self.pending_releases = PendingReleases()
        self._clock = f"{self._prefix}clock"
        self._is_cluster = isinstance(self.pool, Cluster)
        self._replicas = self.options["REPLICAS"]
        self._floor = 0
        self._guard = threading.Lock()

    def reset_after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        self._guard = threading.Lock()

    def raise_token_floor(self, name: str, token: int) -> None:
        """Keep this process's tokens above `token`, even if Redis has lost its data."""
        self._raise_floor(token >> SALT_BITS)

    def _raise_floor(self, ticks: int) -> None:
        with self._guard:
            self._floor = max(self._floor, ticks)

    def ticks(self) -> str:
        """Return the time from which tokens grow, as an argument of the scripts."""
        now, floor = time.time_ns() // 16000, self._floor
        return str(now if floor < now < LAST_TICK else floor + 1)

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of the lock, its queue, the clock of all names, and shared holders.

        In a Cluster, the clock is that of the names of one slot, because a script runs in one slot.
        """
        tag = tagged(name) if self._is_cluster else name
        clock = f"{self._clock}:{{{tags()[slot_of(tag)]}}}" if self._is_cluster else self._clock
        lock = f"{self._prefix}{{{tag}}}"
        keys = lock, f"{lock}:waiters", clock
        return (*keys, f"{lock}:holders") if name.startswith(SHARED) else keys

    def _run(self, script: Script, claim: Claim, *args: str) -> tuple[Any, bool]:
        """Return the script's reply, and whether it was sent twice because a reply was lost."""
        pool = self.pool.of(claim.name)
        connection = pool.get()
        used, reply = self._ask(connection, script, claim, *args)
        pool.give(used)
        return reply, used is not connection and not used.redirected

    def _ask(
        self,
        connection: Connection,
        script: Script,
        claim: Claim,
        *args: str,
        undo: Undo = None,
        limit: float = math.inf,
    ) -> tuple[Connection, Any]:
        """Run a script for the claim's owner; see `ConnectionPool.retry_once`.

        The lost reply may have been a grant: a script that runs again returns the same grant.
        """
        keys, args = self.keys(claim.name), (claim.owner, *args)
        script, pool = script_for(script, claim.name), self.pool.of(claim.name)
        if script is KEEP:
            keys = keys[:1]
        return pool.retry_once(connection, Connection.run, script, keys, args, undo, limit)

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check the options, and that LOCATION is the URL of a server."""
        found = super().check(alias, conf)
        if problem := url_problem(conf.get("LOCATION")):
            text = f"LOCKS[{alias!r}] LOCATION {problem}."
            found.append(Error(text, id="locking.E020"))
        return found

    @classmethod
    def check_store(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check that the server is a master of its own that keeps its keys."""
        found = server_problem(conf["LOCATION"])
        where = f"LOCKS[{alias!r}] LOCATION"
        return [Error(f"{where} {found[1]}", id=f"locking.{found[0]}")] if found else []
