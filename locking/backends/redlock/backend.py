"""RedLock: a majority of independent Redis masters grants (REQUIREMENTS L10).

The algorithm is Sanfilippo's, https://redis.io/docs/latest/develop/use/patterns/distributed-locks/:
SET NX PX with a value of one's own on every master, a grant when a majority says yes and the lease
less the time it took less the clocks' drift is still above zero, else undo everywhere and try again
after a random pause.

    "redlock": {
        "BACKEND": "locking.backends.redlock.RedLockBackend",
        "LOCATION": ["redis://one", "redis://two", "redis://three"],   # odd, independent
        "OPTIONS": {
            "NODE_TIMEOUT": 0.05,    # seconds after which a master counts as silent
            "RESTART_DELAY": 6.0,    # see below; 0 by default
            "PREFIX": "redlock:",    # of the keys
        },
    }

Delayed restart. A master that restarts without its keys votes twice, and two claims have a
majority. With RESTART_DELAY, the longest ttl in use, this client asks no master for a vote until it
has been up for so long that every grant from before its restart is over. So a fleet of empty new
masters grants nothing for that time. Leave it 0 only where `appendfsync always` keeps the keys.

What nothing here repairs: a master whose clock jumps forward frees its keys early, and a holder
that is paused does not know that its time is over. Neither is there a token that grows with the
grants, for the masters have no common counter. The guarded row must protect itself.

There is no queue among five masters: who waits asks again after 1 to 16 ms.
"""

from __future__ import annotations

import math
import random
import re
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.clock_tokens import clock_token
from locking.backends.redis.connection import Script, eviction_policy, milliseconds, pack
from locking.backends.redlock.quorum import Master, Quorum, Votes
from locking.exceptions import LockLost, LockMisuse, LockUnavailable
from locking.types import is_number

PAUSE = (0.001, 0.016)
"""Seconds between attempts, at random, so that contenders who split the votes part."""
SILENCES = 20
"""Node time-outs for which the lack of a majority is forgiven, for masters have hiccups."""
MAX_IDLE = 32
"""Quorums kept while nobody uses them."""
OPTIONS = {"NODE_TIMEOUT": 0.05, "RESTART_DELAY": 0.0, "PREFIX": "redlock:"}

_VALUE = re.compile(r".+ \d+")
_RELEASE = Script("redlock_release.lua")
_EXTEND = Script("redlock_extend.lua")
_LIST = Script("redlock_list.lua")


class RedLockBackend(Backend):
    """Grants by majority; a minority of the masters may be dead, silent or slow."""

    capabilities = Capabilities(
        summary=gettext_noop(
            "A majority of independent Redis masters: no single one of them can stop the sale."
        ),
        exclusion="machines",
        expires=True,
        survives_minority=True,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        options = {**OPTIONS, **self.options}
        self._patience = float(options["NODE_TIMEOUT"])
        self._restart_delay = float(options["RESTART_DELAY"])
        self._silence = SILENCES * self._patience
        self._prefix = str(options["PREFIX"])
        self._all: weakref.WeakSet[Quorum] = weakref.WeakSet()
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: let go of the parent's connections."""
        super().reset_after_fork()
        for quorum in list(self._all):
            quorum.reset_after_fork()
        self._all.clear()
        self._masters = [Master(url, self._restart_delay) for url in self.location]
        self._majority = len(self._masters) // 2 + 1
        self._idle: deque[Quorum] = deque()
        self._pinned: dict[str, Quorum] = {}
        """The quorum that a grant came from, by owner: a slow master has its SET still to read."""

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """An odd number of different masters, at least three; times that fit the lease."""
        where, urls = f"LOCKS[{alias!r}]", conf.get("LOCATION")
        options = {**OPTIONS, **conf.get("OPTIONS", {})}
        ttl = conf.get("TTL", 6.0)
        patience, delay = options["NODE_TIMEOUT"], options["RESTART_DELAY"]
        found = []
        if not isinstance(urls, list | tuple) or not all(_address(url) for url in urls):
            found.append(("E031", "LOCATION is not a list of redis:// URLs."))
        else:
            if len(urls) < 3 or len(urls) % 2 == 0:
                found.append(("E032", f"LOCATION names {len(urls)} masters: 3, 5 or 7 are wanted."))
            if len({_address(url) for url in urls}) < len(urls):
                found.append(("E033", "LOCATION names one server twice: it would vote twice."))
            for url in urls:
                with suppress(LockUnavailable):  # down, or keeps its settings to itself
                    if (policy := eviction_policy(url)) != "noeviction":
                        text = f"{_address(url)} evicts keys, and with them locks ({policy})."
                        found.append(("E037", text))
        if not is_number(patience) or not 0 < patience <= ttl / 10:
            found.append(
                ("E034", f"NODE_TIMEOUT is {patience!r}: give seconds, at most a tenth of TTL.")
            )
        if not is_number(delay) or not (delay == 0 or delay >= ttl):
            found.append(
                ("E035", f"RESTART_DELAY is {delay!r}: give 0, or the longest ttl in use.")
            )
        if unknown := sorted(set(options) - set(OPTIONS)):
            found.append(("E036", f"OPTIONS has unknown keys: {', '.join(unknown)}."))
        return [Error(f"{where} {message}", id=f"locking.{number}") for number, message in found]

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Ask all masters until a majority grants, or refuses for `timeout` seconds."""
        life = self._life(claim.ttl)
        patience = min(self._patience, claim.ttl / 4)
        give_up = time.monotonic() + timeout
        silent_rounds, silent_from, failure = 0, math.inf, None
        token = clock_token()
        quorum = self._borrow()
        try:
            while not claim.cancelled.is_set():
                voters = quorum.voters()
                started = time.monotonic()
                votes = quorum.ask(voters, self._take(claim, token), patience)
                now = time.monotonic()
                if len(votes.yes) >= quorum.majority and now < started + life:
                    quorum.pinned_until = started + life
                    self._pinned[claim.owner] = quorum
                    return Grant(token, started + life)
                # Undone also where no answer came; where it was refused there is nothing of ours.
                quorum.undo([v for v in voters if v not in votes.no], self._undo(claim, token))
                if votes.answered >= quorum.majority:
                    silent_rounds, silent_from = 0, math.inf
                    if now >= give_up:
                        break
                else:
                    silent_rounds, silent_from = silent_rounds + 1, min(silent_from, started)
                    # At least twice: the first may have met connections that died while idle.
                    if silent_rounds > 1 and now >= min(give_up, silent_from + self._silence):
                        failure = self._unavailable(quorum, votes.answered)
                        break
                pause = random.uniform(*PAUSE)
                claim.cancelled.wait(pause if silent_rounds else min(pause, give_up - now))
                # Each attempt has a value of its own: the undoing of an earlier one may come late,
                # out of a connection that broke since, and must leave this one alone.
                token = clock_token()
        except BaseException:
            quorum.abandon(self._undo(claim, token))
            self._keep(quorum)
            raise
        self._keep(quorum)
        if failure is not None:
            raise failure
        return None

    def release(self, claim: Claim, token: int) -> None:
        """Free it on every master; the word of a majority is waited for."""
        quorum = self._pinned.pop(claim.owner, None) or self._borrow()
        with quorum.mutex:
            votes = quorum.settle(self._undo(claim, token), self._silence)
        self._keep(quorum)
        self._judge(claim, quorum, votes)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Let it live on at a majority."""
        life = self._life(ttl)
        values = [_value(claim, token), milliseconds(ttl)]
        packed = _EXTEND.pack([self._prefix + claim.name], values, whole=True)
        if quorum := self._pinned.get(claim.owner):
            with quorum.mutex:
                if self._pinned.get(claim.owner) is quorum:  # not released while we waited
                    started = time.monotonic()
                    self._judge(claim, quorum, quorum.settle(packed, self._patience))
                    quorum.pinned_until = started + life
                    return quorum.pinned_until
        raise claim.lost()

    def inspect(self) -> list[Held]:
        """What a majority keeps. Walks over all keys of every master: for operators."""
        pattern = re.sub(r"([][*?\\])", r"\\\1", self._prefix) + "*"
        left: defaultdict[tuple[str, str], dict[Master, int]] = defaultdict(dict)
        answered = 0
        with self._borrowed() as quorum:
            for line in quorum.lines():
                cursor = "0"
                while reply := quorum.ask(
                    [line], _LIST.pack([], [cursor, pattern], whole=True), 4 * self._patience
                ).other.get(line):
                    cursor, found = reply
                    for key, value, milliseconds in found:
                        left[key, value][line.master] = milliseconds
                    if cursor == "0":
                        answered += 1
                        break
            if answered < quorum.majority:
                raise self._unavailable(quorum, answered)
        return [
            Held(
                name=key.removeprefix(self._prefix),
                owner=value.rpartition(" ")[0],
                token=int(value.rpartition(" ")[2]),
                # Until the first of the last majority forgets it.
                expires_in=sorted(times.values(), reverse=True)[self._majority - 1] / 1000,
            )
            for (key, value), times in left.items()
            if len(times) >= self._majority and _VALUE.fullmatch(value)
        ]

    def probe(self) -> None:
        """A majority may vote and answers."""
        with self._borrowed() as quorum:
            votes = quorum.ask(quorum.voters(), pack("PING"), self._silence)
            if len(votes.yes) < quorum.majority:
                raise self._unavailable(quorum, votes.answered)

    def break_lock(self, name: str) -> bool:
        """Delete it from every master; the holder finds out when it extends or releases."""
        with self._borrowed() as quorum:
            votes = quorum.settle(pack("DEL", self._prefix + name), self._silence)
            if votes.answered < quorum.majority:
                raise self._unavailable(quorum, votes.answered)
        return bool(votes.yes)

    def close(self) -> None:
        """Close every connection, of held locks too: they are opened again when needed."""
        while self._idle:
            with suppress(IndexError):  # somebody borrowed it
                self._idle.pop().close()
        for owner, quorum in list(self._pinned.items()):
            with quorum.mutex:
                if self._pinned.get(owner) is quorum:
                    quorum.reset()

    def _judge(self, claim: Claim, quorum: Quorum, votes: Votes) -> None:
        """What the masters' answer to a holder means."""
        if len(votes.yes) >= quorum.majority:
            return
        if len(votes.no) > len(self._masters) - quorum.majority:
            raise LockLost(f"A majority of the masters has not {claim.name!r} for {claim.owner}.")
        raise self._unavailable(quorum, votes.answered)

    def _borrow(self) -> Quorum:
        with suppress(IndexError):
            return self._idle.pop()
        # A new one is needed: first those of holders that died and never released.
        now = time.monotonic()
        for owner, quorum in list(self._pinned.items()):
            if quorum.pinned_until < now and quorum.mutex.acquire(blocking=False):
                swept = self._pinned.pop(owner, None)
                quorum.mutex.release()
                if swept is not None:
                    return quorum
        quorum = Quorum(self._masters, self._patience)
        self._all.add(quorum)
        return quorum

    def _keep(self, quorum: Quorum) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(quorum)
        else:
            quorum.close()

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
            self._keep(quorum)

    def _take(self, claim: Claim, token: int) -> bytes:
        key, life = self._prefix + claim.name, milliseconds(claim.ttl)
        return pack("SET", key, _value(claim, token), "NX", "PX", life)

    def _undo(self, claim: Claim, token: int) -> bytes:
        # Whole, since a reply that is not awaited cannot say that the script is unknown.
        return _RELEASE.pack([self._prefix + claim.name], [_value(claim, token)], whole=True)

    def _life(self, ttl: float) -> float:
        """Seconds for which a grant may be relied on, from before it was asked for."""
        life = ttl - (ttl * 0.01 + 0.002)  # clocks of holder and master drift apart
        if life <= 0:
            raise LockMisuse(f"ttl is {ttl}: less than the clocks' drift.")
        if 0 < self._restart_delay < ttl:
            raise LockMisuse(
                f"ttl is {ttl}: a master may vote {self._restart_delay:g} s after its restart, "
                "so no grant may live longer (OPTIONS RESTART_DELAY)."
            )
        return life

    def _unavailable(self, quorum: Quorum, answered: int) -> LockUnavailable:
        young = self._restart_delay
        error = LockUnavailable(
            f"{answered} of {len(self._masters)} masters answered, {quorum.majority} are needed."
            + (f" None is asked that restarted less than {young:g} s ago." if young else "")
        )
        error.__cause__ = quorum.error()
        return error


def _value(claim: Claim, token: int) -> str:
    return f"{claim.owner} {token}"


def _address(url: object) -> str:
    """Which server a URL means; two databases of one server are one vote. Empty when it is none."""
    parts = urlsplit(str(url))
    if parts.scheme == "unix":
        return parts.path
    try:
        known = parts.scheme in ("redis", "rediss") and parts.hostname
        return f"{parts.hostname}:{parts.port or 6379}" if known else ""
    except ValueError:  # a port that is none
        return ""
