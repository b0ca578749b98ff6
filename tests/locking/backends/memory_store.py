"""A correct backend in memory with every capability, its store, and the faults of that store.

The mutants of the contract are made of it.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from locking.backends.base import Backend
from locking.claims import READER, WRITER, Capabilities, Claim, Grant, Held, other_slots
from locking.exceptions import LockUnavailable
from locking.lease import Lease, LockStore
from locking.testing.driver import StoreDriver


@dataclass
class Row:
    """One lock: its holders by owner, each with a monotonic end in `expires_in`; its queue."""

    holders: dict[str, Held] = field(default_factory=dict)
    queue: list[Claim] = field(default_factory=list)
    slots: int | None = None


class Server:
    """The store; every backend of this process has the same one."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rows: dict[str, Row] = defaultdict(Row)
        self.last_token = self.requests = 0
        self.is_paused = self.has_majority_only = False
        self.clock_offset = 0.0

    def forget(self) -> None:
        """Lose all locks, as a restart without persistence does."""
        with self.changed:
            for row in self.rows.values():
                row.holders.clear()
            self.changed.notify_all()


server = Server()


class MemoryBackend(Backend):
    """First come, first served."""

    capabilities = Capabilities(
        summary="Correct, in memory.",
        exclusion="process",
        fair=True,
        expires=True,
        fencing=True,
        counts_in_store=True,
        hands_over=True,
        wakes_waiters=True,
        lists_holders=True,
        shared=True,
        tokens_outlive_failover=True,
        survives_minority=True,
    )

    @property
    def server(self) -> Server:
        """The store."""
        return server

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        global server
        server = Server()

    @contextmanager
    def asked(self, *, wakes: bool = True) -> Iterator[None]:
        """Send a request, which wakes the waiters at its end."""
        if self.server.is_paused:
            raise LockUnavailable("the store does not reply")
        with self.server.changed:
            self.server.requests += 1
            yield
            if wakes:
                self.server.changed.notify_all()

    def row(self, name: str) -> Row:
        """Return a row without the holders whose time is over."""
        row = self.server.rows[name]
        for held in list(row.holders.values()):
            if self.is_over(held.expires_in):
                del row.holders[held.owner]
        return row

    def is_over(self, end: float) -> bool:
        return end <= time.monotonic()

    def first(self, queue: list[Claim]) -> Claim:
        """Return the claim that is next."""
        return queue[0]

    def fits(self, row: Row, claim: Claim) -> bool:
        """Return whether the holders leave room for a claim."""
        if claim.slots == READER:
            return row.slots == READER or not row.holders
        return len(row.holders) < (1 if claim.slots in (None, WRITER) else claim.slots)

    def token(self) -> int:
        self.server.last_token += 1
        return self.server.last_token

    def held(self, claim: Claim, row: Row) -> Held:
        if claim.owner not in row.holders:
            raise claim.lost()
        return row.holders[claim.owner]

    def is_cancelled(self, claim: Claim) -> bool:
        return claim.cancelled.is_set()

    def wake(self) -> None:
        with self.server.changed:
            self.server.changed.notify_all()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        until, claim.interrupt = time.monotonic() + timeout, self.wake
        with self.asked():
            row = self.row(claim.name)
            if row.holders and (claim.slots or 0) > 0 and claim.slots != row.slots:
                raise other_slots(claim, row.slots or 0)
            row.queue.append(claim)
            try:
                while not self.is_cancelled(claim):
                    row = self.row(claim.name)
                    if self.first(row.queue) is claim and self.fits(row, claim):
                        return self.grant(claim, row)
                    now = time.monotonic()
                    if until <= now:
                        break
                    ends = [held.expires_in for held in row.holders.values()]
                    # Late, so that a newcomer can come before the waiter notices the end.
                    self.server.changed.wait(min(until, now + 60, *ends) - now + 0.1)
                return None
            finally:
                row.queue.remove(claim)
                claim.end_wait()

    def grant(self, claim: Claim, row: Row) -> Grant:
        token, end = self.token(), time.monotonic() + claim.ttl
        row.slots = claim.slots
        row.holders[claim.owner] = Held(
            name=claim.name, owner=claim.owner, token=token, count=1, expires_in=end
        )
        return Grant(token, end)

    def release(self, claim: Claim, token: int) -> None:
        with self.asked():
            row = self.row(claim.name)
            self.held(claim, row)
            del row.holders[claim.owner]

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        with self.asked():
            row = self.row(claim.name)
            end = time.monotonic() + ttl
            row.holders[claim.owner] = replace(self.held(claim, row), expires_in=end)
            return end

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:
        with self.asked():
            row = self.row(claim.name)
            row.holders[claim.owner] = replace(self.held(claim, row), count=depth)

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        with self.asked():
            row = self.row(claim.name)
            if taken := row.holders.get(claim.owner):
                return Grant(taken.token, taken.expires_in)
            giver = row.holders.get(owner)
            if giver is None or (giver.token, giver.count) != (token, 0):
                raise claim.lost()
            self.drop(row, owner)
            return self.grant(claim, row)

    def drop(self, row: Row, owner: str) -> None:
        del row.holders[owner]

    def inspect(self) -> list[Held]:
        with self.asked(wakes=False):
            now = time.monotonic()
            return [
                replace(held, expires_in=held.expires_in - now, waiters=len(row.queue))
                for row in map(self.row, list(self.server.rows))
                for held in row.holders.values()
            ]

    def nodes_down(self) -> list[str]:
        return ["last"] * server.has_majority_only

    def probe(self) -> None:
        with self.asked(wakes=False):
            pass

    def break_lock(self, name: str) -> bool:
        with self.asked():
            row = self.row(name)
            was_held = bool(row.holders)
            row.holders.clear()
            return was_held


class MemoryDriver(StoreDriver):
    """The faults of the store in memory."""

    def recover(self) -> None:
        server.is_paused = server.has_majority_only = False
        server.clock_offset = 0.0

    def requests(self) -> int:
        return server.requests

    def pause(self) -> None:
        server.is_paused = True

    def restart(self) -> bool:
        server.forget()
        return False

    def promote_replica(self) -> bool:
        server.forget()
        return False

    def stop_minority(self) -> None:
        server.has_majority_only = True

    def shift_clock(self, seconds: float) -> None:
        server.clock_offset = seconds


class SessionBackend(MemoryBackend):
    """A grant lasts as long as its holder's session."""

    capabilities = replace(
        MemoryBackend.capabilities, expires=False, session_bound=True, hands_over=False
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.claims: dict[str, Claim] = {}

    def is_over(self, end: float) -> bool:
        return False

    def grant(self, claim: Claim, row: Row) -> Grant:
        self.claims[claim.owner] = claim
        return super().grant(claim, row)._replace(deadline=float("inf"))

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        super().extend(claim, token, ttl)
        return float("inf")

    def inspect(self) -> list[Held]:
        return [replace(held, expires_in=None) for held in super().inspect()]

    def session_ended(self, owner: str) -> None:
        """Learn of the end of a session."""
        if report := self.claims[owner].report_lost:
            report()


class SessionDriver(MemoryDriver):
    """Its sessions end, too."""

    def end_session(self, store: LockStore, lease: Lease) -> None:
        assert isinstance(store.backend, SessionBackend)
        with store.backend.asked():
            store.backend.drop(server.rows[lease.name], lease.owner)
        store.backend.session_ended(lease.owner)
