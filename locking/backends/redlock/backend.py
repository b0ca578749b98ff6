"""RedLock: a majority of independent Redis masters grants (REQUIREMENTS L10).

The algorithm is Sanfilippo's, https://redis.io/docs/latest/develop/use/patterns/distributed-locks/:
SET NX PX with a unique value on every master. The lock is acquired if a majority grants it and the
ttl, less the elapsed time and the clocks' drift, is above zero; otherwise all votes are withdrawn
and the claim tries again after a random pause.

    "redlock": {
        "BACKEND": "locking.backends.redlock.RedLockBackend",
        "LOCATION": ["redis://one", "redis://two", "redis://three"],   # odd, independent
        "OPTIONS": {
            "NODE_TIMEOUT": 0.05,    # seconds in which a master must reply
            "RESTART_DELAY": 6.0,    # see below; 0 by default
            "PREFIX": "redlock:",    # of the keys
        },
    }

Delayed restart. A master that restarts without its keys can vote twice, so two claims can have a
majority. Set RESTART_DELAY to the longest ttl in use: a restarted master then gets no vote until
every grant from before its restart has ended. New, empty masters grant nothing for that time. Use 0
only if `appendfsync always` keeps the keys.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop

from locking.backends.base import Backend
from locking.backends.clock_tokens import clock_time, clock_token
from locking.backends.options import seconds, text
from locking.backends.pending_releases import PendingReleases
from locking.backends.pool import IdlePool
from locking.backends.redis.addresses import url_problem
from locking.backends.redis.connection import Script, milliseconds, pack
from locking.backends.redis.server_check import server_problem
from locking.backends.redlock.master import Master, MasterConnection
from locking.backends.redlock.quorum import Quorum, Votes
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockLost, LockMisuse, LockUnavailable
from locking.names import is_number

RETRY_DELAY = (0.001, 0.016)
"""Range of the random pause in seconds, which separates claims that split the votes."""
MAJORITY_TIMEOUT = 20
"""Node time-outs without a majority after which the lock is unavailable."""
MAX_IDLE = 32
"""Quorums kept while not in use."""

_VALUE = re.compile(r".+ \d+")
_RELEASE = Script("redlock_release.lua")
_EXTEND = Script("redlock_extend.lua")
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
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Abandon the parent's connections; also creates the first state."""
        super().reset_after_fork()
        self.pool.reset_after_fork()
        self._masters = [Master(url, self._restart_delay) for url in self.location]
        self._majority = len(self._masters) // 2 + 1
        self._pinned: dict[str, Quorum] = {}
        """The quorum of a grant, by owner: a slow master may still have to read its SET."""

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
        elif len({_address(url) for url in urls}) < len(urls):
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
        """Check each master like the server of the `redis` backend."""
        return [
            Error(f"LOCKS[{alias!r}] LOCATION {_address(url)} {why[1]}", id=f"locking.{why[0]}")
            for url in conf["LOCATION"]
            if (why := server_problem(url))
        ]

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Ask all masters until a majority grants, or for `timeout` seconds."""
        validity = self._validity(claim.ttl)
        node_timeout = min(self._node_timeout, claim.ttl / 4)
        until = time.monotonic() + timeout
        failures, failing_since, error = 0, math.inf, None
        token = clock_token()
        quorum = self._borrow()
        try:
            while not claim.cancelled.is_set():
                voters = quorum.voters()
                started = time.monotonic()
                votes = quorum.ask(voters, self._take(claim, token), node_timeout)
                now = time.monotonic()
                if len(votes.yes) >= quorum.majority and now < started + validity:
                    quorum.pinned_until = started + validity
                    self._pinned[claim.owner] = quorum
                    return Grant(token, started + validity)
                # A master that did not reply may have granted; one that voted no has not.
                quorum.undo([v for v in voters if v not in votes.no], self._undo(claim, token))
                if votes.answered >= quorum.majority:
                    failures, failing_since = 0, math.inf
                    if now >= until:
                        break
                else:
                    failures, failing_since = failures + 1, min(failing_since, started)
                    # At least twice: connections may have been lost while they were idle.
                    if failures > 1 and now >= min(until, failing_since + self._majority_timeout):
                        error = self._unavailable(quorum, votes.answered)
                        break
                pause = random.uniform(*RETRY_DELAY)
                claim.cancelled.wait(pause if failures else min(pause, until - now))
                # Each attempt has its own value: the undo of an earlier one may arrive late, from a
                # broken connection, and must not affect this one.
                token = clock_token()
        except BaseException:
            quorum.send_and_reset(self._undo(claim, token))
            self.pool.give(quorum)
            raise
        self.pool.give(quorum)
        if error is not None:
            raise error
        return None

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock on every master and wait for a majority.

        Without one, the release is repeated in the background.
        """
        pinned = self._pinned.pop(claim.owner, None)
        try:
            self._release(claim, token, pinned or self._borrow())
        except LockUnavailable:
            self.pending_releases.add(lambda: self._release_later(claim, token), claim.ttl)
            raise

    def _release_later(self, claim: Claim, token: int) -> None:
        with suppress(LockLost):
            self._release(claim, token, self._borrow())

    def _release(self, claim: Claim, token: int, quorum: Quorum) -> None:
        with quorum.mutex:
            votes = quorum.ask_all(self._undo(claim, token), self._majority_timeout)
        self.pool.give(quorum)
        self._judge(claim, quorum, votes)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant on a majority."""
        validity = self._validity(ttl)
        values = [_value(claim, token), milliseconds(ttl)]
        packed = _EXTEND.pack([self._prefix + claim.name], values, whole=True)
        if quorum := self._pinned.get(claim.owner):
            with quorum.mutex:
                if self._pinned.get(claim.owner) is quorum:  # not released meanwhile
                    started = time.monotonic()
                    self._judge(claim, quorum, quorum.ask_all(packed, self._node_timeout))
                    quorum.pinned_until = started + validity
                    return quorum.pinned_until
        raise claim.lost()

    def inspect(self) -> list[Held]:
        """Return the locks that may have a majority. Scans every key of every master.

        A master that does not reply, or that restarted and may have lost its keys, may have voted
        for any of them.
        """
        pattern = re.sub(r"([][*?\\])", r"\\\1", self._prefix) + "*"
        left: defaultdict[tuple[str, str], dict[Master, int]] = defaultdict(dict)
        answered = 0
        with self._borrowed() as quorum:
            for connection in quorum.connections():
                if (found := self._scan(quorum, connection, pattern)) is not None:
                    answered += 1
                    for key, value, milliseconds in found:
                        left[key, value][connection.master] = milliseconds
            if answered < quorum.majority:
                raise self._unavailable(quorum, answered)
        needed = self._majority - (len(self._masters) - answered)
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
        self, quorum: Quorum, connection: MasterConnection, pattern: str
    ) -> list[tuple[str, str, int]] | None:
        """Return key, value and milliseconds left of each lock on a master; None if unknown."""
        if connection.votes_from > time.monotonic():
            return None
        locks, cursor = [], "0"
        while True:
            packed = _LIST.pack([], [cursor, pattern], whole=True)
            votes = quorum.ask([connection], packed, 4 * self._node_timeout)
            if not (reply := votes.other.get(connection)):
                return None
            cursor, found = reply
            locks += found
            if cursor == "0":
                return locks

    def probe(self) -> None:
        """Check that a majority may vote and replies."""
        with self._borrowed() as quorum:
            votes = quorum.ask(quorum.voters(), pack("PING"), self._majority_timeout)
            if len(votes.yes) < quorum.majority:
                raise self._unavailable(quorum, votes.answered)

    def break_lock(self, name: str) -> bool:
        """Delete the key on every master; the holder's next call raises LockLost."""
        with self._borrowed() as quorum:
            votes = quorum.ask_all(pack("DEL", self._prefix + name), self._majority_timeout)
            if votes.answered < quorum.majority:
                raise self._unavailable(quorum, votes.answered)
        return bool(votes.yes)

    def close(self) -> None:
        """Close every connection, also of held locks, which reconnect when needed."""
        self.pool.close()
        for owner, quorum in list(self._pinned.items()):
            with quorum.mutex:
                if self._pinned.get(owner) is quorum:
                    quorum.reset()

    def _judge(self, claim: Claim, quorum: Quorum, votes: Votes) -> None:
        """Raise the error that the masters' replies to a holder mean, if any."""
        if len(votes.yes) >= quorum.majority:
            return
        if len(votes.no) > len(self._masters) - quorum.majority:
            raise LockLost(
                f"{claim.name!r} is not held by {claim.owner} on a majority of the masters."
            )
        raise self._unavailable(quorum, votes.answered)

    def _borrow(self) -> Quorum:
        if idle := self.pool.take():
            return idle
        # Reuse one of a holder that ended without a release before opening another.
        now = time.monotonic()
        for owner, quorum in list(self._pinned.items()):
            if quorum.pinned_until < now and quorum.mutex.acquire(blocking=False):
                swept = self._pinned.pop(owner, None)
                quorum.mutex.release()
                if swept is not None:
                    return quorum
        return self.pool.add(Quorum(self._masters, self._node_timeout))

    @contextmanager
    def _borrowed(self) -> Iterator[Quorum]:
        quorum = self._borrow()
        try:
            yield quorum
        except BaseException as error:
            if not isinstance(error, LockUnavailable):
                quorum.reset()
            raise
        finally:
            self.pool.give(quorum)

    def _take(self, claim: Claim, token: int) -> bytes:
        key, ttl = self._prefix + claim.name, milliseconds(claim.ttl)
        return pack("SET", key, _value(claim, token), "NX", "PX", ttl)

    def _undo(self, claim: Claim, token: int) -> bytes:
        # With its source, because the reply that the script is unknown would not be read.
        return _RELEASE.pack([self._prefix + claim.name], [_value(claim, token)], whole=True)

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

    def _unavailable(self, quorum: Quorum, answered: int) -> LockUnavailable:
        delay = self._restart_delay
        error = LockUnavailable(
            f"{answered} of {len(self._masters)} masters replied; {quorum.majority} are required."
            + (f" Masters that restarted less than {delay:g} s ago do not vote." if delay else "")
        )
        error.__cause__ = quorum.error()
        return error


def _value(claim: Claim, token: int) -> str:
    return f"{claim.owner} {token}"


def _address(url: object) -> str:
    """Return the server of a URL, or "". Two databases of one server have one vote."""
    parts = urlsplit(str(url))
    if parts.scheme == "unix":
        return parts.path
    try:
        known = parts.scheme in ("redis", "rediss") and parts.hostname
        return f"{parts.hostname}:{parts.port or 6379}" if known else ""
    except ValueError:  # not a port
        return ""
