"""RedLock: a majority of independent Redis masters grants.

The algorithm is Sanfilippo's, https://redis.io/docs/latest/develop/use/patterns/distributed-locks/:
SET NX PX with a unique value on every master. The lock is acquired if a majority grants it and the
ttl, less the elapsed time and the clocks' drift, is above zero; otherwise all votes are withdrawn
and the claim tries again after a random pause.

    "redlock": {
        "BACKEND": "locking.backends.redlock.RedLockBackend",
        "LOCATION": ["redis://one", "redis://two", "redis://three"],   # odd, independent
        "OPTIONS": {
            "NODE_TIMEOUT": 0.05,    # seconds in which a master must reply
            "RESTART_DELAY": 6.0,    # see below
            "PREFIX": "redlock:",    # of the keys
        },
    }

Delayed restart. A master that restarts without its keys can vote twice, so two claims can have a
majority. Set RESTART_DELAY to the longest ttl in use: a restarted master then gets no vote until
every grant from before its restart has ended. New, empty masters grant nothing for that time. Write
0, the default, only if `appendfsync always` keeps the keys: without the option, a check warns.

RedLock does not prevent two failures: a master whose clock jumps forward deletes its keys early,
and a paused holder does not notice the end of its lease. It has no fencing token either, because
the masters have no common counter. The guarded row must protect itself.

The masters have no common queue: a waiter tries again after 1 to 16 ms.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import redis
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.utils.translation import gettext_noop

from locking.backends.base import Backend
from locking.backends.clock_tokens import clock_time, clock_token
from locking.backends.options import seconds, text
from locking.backends.pending_releases import PendingReleases
from locking.backends.pool import IdlePool
from locking.backends.redis.addresses import url_problem
from locking.backends.redis.connection import Connection, Script, milliseconds, pack
from locking.backends.redis.server_check import server_problem
from locking.backends.redlock.quorum import (
    CONNECT_TIMEOUT,
    NO,
    YES,
    MasterConnection,
    Quorum,
    count,
)
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockMisuse, LockUnavailable
from locking.names import is_number

RETRY_DELAY = (0.001, 0.016)
"""Range of the random pause in seconds, which separates claims that split the votes."""
MAJORITY_TIMEOUT = 20
"""Node timeouts without a majority after which the lock is unavailable."""
MAX_IDLE = 32
"""Quorums kept while not in use."""

_VALUE = re.compile(r".+ \d+")
_KEEP = Script("redlock_keep.lua")
_LIST = Script("redlock_list.lua")


class RedLockBackend(Backend):
    """Grants by majority; a minority of the masters may be down or slow."""

    capabilities = Capabilities(
        summary=gettext_noop(
            "A majority of independent Redis masters: a minority of them may fail."
        ),
        exclusion="machines",
        expires=True,
        survives_minority=True,
        lists_holders=True,
    )

    known_options: ClassVar = {
        "NODE_TIMEOUT": seconds(0.05),
        "RESTART_DELAY": seconds(0.0, may_be_zero=True),
        "PREFIX": text("redlock:"),
    }

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        options = self.options
        self._node_timeout = float(options["NODE_TIMEOUT"])
        self._restart_delay = float(options["RESTART_DELAY"])
        self._majority_timeout = MAJORITY_TIMEOUT * self._node_timeout
        self._prefix = options["PREFIX"]
        self.pool: IdlePool[Quorum] = IdlePool(MAX_IDLE)
        self.pending_releases = PendingReleases()

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check that the masters are different, odd in number, and that the times fit the ttl."""
        found = super().check(alias, conf)
        wrong: list[tuple[str, str]] = []
        urls = conf.get("LOCATION")
        if not isinstance(urls, list | tuple):
            wrong.append(("E031", f"LOCATION is {urls!r:.60}: give a list of URLs."))
        elif problem := next(filter(None, (url_problem(url, single=True) for url in urls)), None):
            wrong.append(("E031", f"LOCATION {problem}."))
        elif len(urls) < 3 or len(urls) % 2 == 0:
            wrong.append(("E032", f"LOCATION names {len(urls)} masters; use 3, 5 or 7."))
        elif len(set(map(_address, urls))) < len(urls):
            wrong.append(("E033", "LOCATION names one server twice; it would vote twice."))
        ttl = conf.get("TTL", 6.0)
        if not found and is_number(ttl):
            options = {name: option.default for name, option in cls.known_options.items()}
            options |= conf.get("OPTIONS") or {}
            timeout, delay = options["NODE_TIMEOUT"], options["RESTART_DELAY"]
            if timeout > ttl / 10:
                wrong.append(("E034", f"NODE_TIMEOUT is {timeout:g}; use at most a tenth of TTL."))
            if 0 < delay < ttl:
                text = f"RESTART_DELAY is {delay:g}; use 0 or the longest ttl in use."
                wrong.append(("E035", text))
        found += [Error(f"LOCKS[{alias!r}] {why}", id=f"locking.{number}") for number, why in wrong]
        return found

    @classmethod
    def check_store(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check each master like the server of the `redis` backend, and that a restart is safe."""
        found: list[CheckMessage] = [
            Error(f"LOCKS[{alias!r}] LOCATION {_address(url)} {why[1]}", id=f"locking.{why[0]}")
            for url in conf["LOCATION"]
            if (why := server_problem(url))
        ]
        if "RESTART_DELAY" not in (conf.get("OPTIONS") or {}):
            text = (
                f"LOCKS[{alias!r}] RESTART_DELAY is not set: a master that restarts without its "
                "keys votes twice. Give the longest ttl in use, or 0 if `appendfsync always` "
                "keeps the keys."
            )
            found.append(CheckWarning(text, id="locking.W036"))
        return found

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Ask all masters until a majority grants, or for `timeout` seconds."""
        validity = self._validity(claim.ttl)
        node_timeout = min(self._node_timeout, claim.ttl / 4)
        until, failing_since, failures = time.monotonic() + timeout, math.inf, 0
        with self._borrowed() as quorum:
            while not claim.cancelled.is_set():
                # Each attempt has its own value: the undo of an earlier one may arrive late, from a
                # broken connection, and must not affect this one.
                token = clock_token()
                quorum.undo = self._keep(claim, token)
                voters = quorum.voters()
                started = time.monotonic()
                votes = quorum.ask(voters, self._take(claim, token), node_timeout)
                now = time.monotonic()
                if count(votes, YES) >= quorum.majority and now < started + validity:
                    return Grant(token, started + validity)
                # A master that did not reply may have granted; one with another reply has not.
                voted = [voter for voter in voters if votes.get(voter, 1) in YES]
                for lost in set(voted) - quorum.send(voted, quorum.undo):
                    self.pending_releases.add(partial(_send, lost.url, quorum.undo), claim.ttl)
                if count(votes, YES + NO) >= quorum.majority:
                    failures, failing_since = 0, math.inf
                    if now >= until:
                        break
                else:
                    failures, failing_since = failures + 1, min(failing_since, started)
                    # At least twice: connections may have been lost while they were idle.
                    if failures > 1 and now >= min(until, failing_since + self._majority_timeout):
                        raise quorum.unavailable(votes)
                pause = random.uniform(*RETRY_DELAY)
                claim.cancelled.wait(pause if failures else min(pause, until - now))
        return None

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock on every master and wait for a majority.

        Without one, the release is repeated in the background. A reply that comes after the lease
        says that it was lost, although other masters may have executed the release in time.
        """
        tell = partial(self._tell, self._keep(claim, token), self._majority_timeout)
        try:
            held = tell()
        except LockUnavailable:
            self.pending_releases.add(tell, claim.ttl)
            raise
        if not held:
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant on a majority."""
        validity, started = self._validity(ttl), time.monotonic()
        if not self._tell(self._keep(claim, token, milliseconds(ttl)), self._node_timeout):
            raise claim.lost()
        return started + validity

    def _tell(self, packed: bytes, timeout: float) -> bool:
        """Send a holder's command to all masters; return False if a majority has no such holder.

        After an exception, it is sent again and may run twice.
        """
        with self._borrowed(packed) as quorum:
            votes = quorum.ask(quorum.connections(), packed, timeout)
            if count(votes, YES) >= quorum.majority:
                return True
            if count(votes, NO) > len(quorum.urls) - quorum.majority:
                return False
            raise quorum.unavailable(votes)

    def inspect(self) -> list[Held]:
        """Return the locks that may have a majority. Scans every key of every master."""
        return self._held(re.sub(r"([][*?\\])", r"\\\1", self._prefix) + "*")

    def holders(self, name: str) -> list[Held]:
        """Return the holder that one lock may have, from one key of every master."""
        return self._held("", [self._prefix + name])

    def _held(self, pattern: str, keys: Sequence[str] = ()) -> list[Held]:
        """Return the locks of a pattern, or of these keys, that may have a majority.

        A master that does not reply, or that restarted and may have lost its keys, may have voted
        for any of them.
        """
        left: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        with self._borrowed() as quorum:
            found = {each: self._scan(quorum, each, pattern, keys) for each in quorum.voters()}
            answered = {each: 1 for each, locks in found.items() if locks is not None}
            if len(answered) < quorum.majority:
                raise quorum.unavailable(answered)
        for connection in answered:
            for key, value, left_ms in found[connection] or ():
                left[key, value][connection.url] = left_ms
        needed = quorum.majority - (len(quorum.urls) - len(answered))
        return [
            Held(
                name=key.removeprefix(self._prefix),
                owner=value.rpartition(" ")[0],
                token=(token := int(value.rpartition(" ")[2])),
                since=clock_time(token),
                # Until the first master of the last majority deletes it.
                expires_in=sorted(times.values(), reverse=True)[needed - 1] / 1000,
            )
            for (key, value), times in left.items()
            if len(times) >= needed and _VALUE.fullmatch(value)
        ]

    def _scan(
        self, quorum: Quorum, connection: MasterConnection, pattern: str, keys: Sequence[str]
    ) -> list[tuple[str, str, int]] | None:
        """Return key, value and milliseconds left of each lock on a master; None if unknown."""
        locks, cursor = [], ""
        while cursor != "0":
            packed = _LIST.pack(keys, [cursor or "0", pattern], whole=True)
            votes = quorum.ask([connection], packed, 4 * self._node_timeout)
            if not isinstance(reply := votes.get(connection), list):
                return None
            cursor = reply[0]
            locks += reply[1]
        return locks

    def probe(self) -> None:
        """Check that a majority may vote and replies."""
        with self._borrowed() as quorum:
            votes = quorum.ask(quorum.voters(), pack("PING"), self._majority_timeout)
            if count(votes, YES) < quorum.majority:
                raise quorum.unavailable(votes)

    def nodes_down(self) -> list[str]:
        """Return the masters that do not reply, or do not vote yet after a restart."""
        limit = 4 * self._node_timeout
        with self._borrowed() as quorum:
            votes = quorum.ask(quorum.voters(), pack("PING"), limit, wait_for_all=True)
        serving = {each.url for each, reply in votes.items() if reply in YES}
        return [_address(url) for url in self.location if url not in serving]

    def break_lock(self, name: str) -> bool:
        """Delete the holder's keys; its next call raises LockLost."""
        if not (found := self.holders(name)):
            return False
        claim = Claim(name=name, owner=found[0].owner, ttl=self.ttl)
        command = self._keep(claim, found[0].token or 0)
        with self._borrowed(command) as quorum:
            votes = quorum.ask(quorum.connections(), command, self._majority_timeout)
            if count(votes, YES + NO) < quorum.majority:
                raise quorum.unavailable(votes)
        return count(votes, YES) > 0

    def close(self) -> None:
        """Close the idle connections; held locks open new ones when needed."""
        self.pool.close()

    @contextmanager
    def _borrowed(self, undo: bytes = pack("PING")) -> Iterator[Quorum]:
        """Yield a quorum; after an exception, its masters get the last command that it names."""
        quorum = self.pool.take() or self.pool.add(
            Quorum(self.location, self._node_timeout, self._restart_delay)
        )
        quorum.undo = undo
        try:
            yield quorum
            self.pool.give(quorum)
        except LockUnavailable:
            self.pool.give(quorum)
            raise
        except BaseException:  # perhaps of a signal handler, after the grant
            quorum.send_undo_and_close()
            self.pool.give(quorum)
            raise

    def _take(self, claim: Claim, token: int) -> bytes:
        key, ttl = self._prefix + claim.name, milliseconds(claim.ttl)
        return pack("SET", key, _value(claim, token), "NX", "PX", ttl)

    def _keep(self, claim: Claim, token: int, left_ms: str = "0") -> bytes:
        """Return the command that lets a grant end after `left_ms`, or withdraws it."""
        # With its source, because the reply that the script is unknown would not be read.
        values = _value(claim, token), left_ms
        return _KEEP.pack([self._prefix + claim.name], values, whole=True)

    def _validity(self, ttl: float) -> float:
        """Return the seconds that a grant is valid, counted from before the command was sent."""
        validity = ttl - (ttl * 0.01 + 0.002)  # the drift between two clocks
        if validity <= 0:
            raise LockMisuse(f"ttl is {ttl}, which is less than the clock drift.")
        if 0 < self._restart_delay < ttl:
            raise LockMisuse(
                f"ttl is {ttl}, more than RESTART_DELAY ({self._restart_delay:g} s): a master that "
                "restarts would vote before the grant ends."
            )
        return validity


def _send(url: str, packed: bytes) -> None:
    """Send a command to one master, on a connection of its own."""
    connection = Connection(url, timeout=CONNECT_TIMEOUT, connect_timeout=CONNECT_TIMEOUT)
    connection.request(packed)
    connection.close()


def _value(claim: Claim, token: int) -> str:
    return f"{claim.owner} {token}"


def _address(url: str) -> str:
    """Return the server of a usable URL. Two databases of one server have one vote."""
    parts = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    return str(parts.get("path") or f"{parts['host']}:{parts.get('port', 6379)}")
