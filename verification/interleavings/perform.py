"""Perform one run of a program with a schedule, and judge what happened."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import connection

from inventory import stock
from inventory.exceptions import InventoryError
from loadtest.kernel.history import Event, Recorder
from locking.backends.base import Backend
from locking.claims import Claim, Grant
from locking.exceptions import LockLost
from verification.histories.linearizability import check
from verification.histories.lock_models import Lock
from verification.interleavings import programs
from verification.interleavings.gates import WAITS, Pause, stop_at_sql
from verification.interleavings.programs import LEASE, Program
from verification.interleavings.schedule import Choice, Client, Fault, Schedule, Stopped
from verification.interleavings.worlds import NAME, TTL, World


class Memory(Recorder):
    """Records the events of one client in a list, with the number of each event as its time.

    A call is recorded when the client is chosen to go on. Otherwise a release would count as
    called, and thus as possible, while its client is stopped before it.
    """

    def __init__(self, actor: str, events: list[Event]) -> None:
        self.actor, self.events, self._ids = actor, events, itertools.count(1)
        self._kept: list[Event] = []

    def note(self, do: str, type: str = "", **fields: Any) -> None:
        """Add an event, or keep a call for later."""
        self._kept.append({"actor": self.actor, "do": do, "type": type, **fields})
        if type != "invoke":
            self.add_kept()

    def add_kept(self) -> None:
        """Add a call that was kept."""
        self.events += [{"t": t, **e} for t, e in enumerate(self._kept, len(self.events))]
        self._kept.clear()


class Runs:
    """The clients of a program, their backends and the judge of their runs."""

    def __init__(self, program: Program, world: World, stock_id: int) -> None:
        self.program, self.world, self.stock_id = program, world, stock_id
        self.events: list[Event] = []
        self.clients = [Client(name) for name in program.clients]
        self.backends: dict[str, Backend] = {}
        for client in self.clients:
            self.backends[client.label] = backend = world.make_backend()
            memory = Memory(client.label, self.events)
            memory.watch_backend(backend)
            client.on_resume = memory.add_kept
        self.observer = world.make_backend()
        self.reads = "read" in program.script
        may_end = LEASE in program.faults
        self.models = [] if may_end else [Lock()]
        if self.observer.capabilities.fencing or may_end:
            self.models.append(Lock(fenced=True))
        for backend in (*self.backends.values(), self.observer):
            _is_free(backend)  # opens the connections, so that all runs find the same

    def close(self) -> None:
        """End the clients, and close their connections."""
        for client in self.clients:
            client.end()
        for backend in (*self.backends.values(), self.observer):
            backend.close()
        self.world.close()

    def perform(self, prefix: Sequence[Choice]) -> tuple[Schedule, str]:
        """Run the program; return the schedule, and what the run violated or ""."""
        self.world.reset()
        self.events.clear()
        if self.reads:
            self.world.reset_stock(self.stock_id, self.program.stock)
        faults = [self._fault(name) for name in self.program.faults]
        if any(name.endswith("crashes") for name in self.program.faults):
            end_lease = partial(self._end_lease, 0)
            faults.append(Fault("the dead holder's lease ends", self._is_held_by_dead, end_lease))
        schedule = Schedule(self.clients, faults, prefix)
        schedule.run(self._play)
        return schedule, programs.STUCK if schedule.is_stuck else self._judge()

    def _judge(self) -> str:
        events = self.events
        if not self.observer.capabilities.fencing and LEASE not in self.program.faults:
            # A majority may be lost before the release: the holder then learns it at that time.
            events = [
                one | {"type": "ok"} if (one["do"], one["type"]) == ("release", "fail") else one
                for one in events
            ]
        if self.reads:
            left, sold = self.world.read_stock(self.stock_id)
            if sold > self.program.stock:
                return programs.OVERSOLD
            if left + sold != self.program.stock:
                return programs.LEDGER
        elif any(one.verdict != "legal" for model in self.models for one in check(events, model)):
            return programs.NOT_LINEARIZABLE
        if any(client.has_crashed for client in self.clients):
            self.world.end_lease()
        return "" if _is_free(self.observer) else programs.NEVER_FREE

    def _fault(self, name: str) -> Fault:
        if name.startswith(LEASE):
            place = int(name.removeprefix(LEASE).removeprefix(" on") or 1) - 1
            return Fault(name, lambda: self._may_end(place), lambda: self._end_lease(place))
        who, _, what = name.partition(" ")
        client = next(one for one in self.clients if one.label == who)
        faults: dict[str, tuple[Callable[[], bool], Callable[[], object]]] = {
            "crashes": (lambda: not client.is_done, client.crash),
            "gives up": (lambda: self._waits(client), lambda: self._give_up(client)),
            "loses a reply": (
                lambda: not client.is_done and client.next != WAITS,
                lambda: client.memory.update({"loses reply": True}) or client,
            ),
        }
        return Fault(name, *faults[what])

    def _waits(self, client: Client) -> bool:
        return not client.is_done and client.next == WAITS

    def _may_end(self, place: int) -> bool:
        words = {one.memory.get("word") for one in self.clients if one.memory.get("holds")}
        if self.program.ends_at and self.program.ends_at not in words:
            return False
        is_one_key = self.program.store != "redlock"  # then a grant is one operation
        if is_one_key and not words and not any(self._waits(one) for one in self.clients):
            return False  # without asking the store
        return self.world.is_held(place)

    def _is_held_by_dead(self) -> bool:
        if not any(one.has_crashed for one in self.clients):
            return False
        alive = any(one.memory.get("holds") and not one.has_crashed for one in self.clients)
        return not alive and self.world.is_held()

    def _end_lease(self, place: int) -> None:
        self.world.end_lease(place)
        for client in self.clients:
            if self._waits(client):
                client.memory["is due"] = True  # a waiter knows when the lease would end

    def _give_up(self, client: Client) -> Client:
        client.memory.update({"is due": True, "gives up": True})
        client.memory["claim"].cancelled.set()
        return client

    def _play(self, client: Client) -> None:
        backend = self.backends[client.label]
        if stop_at_sql not in connection.execute_wrappers:
            connection.cursor().execute("PRAGMA synchronous = OFF")  # no run survives a crash
            connection.execute_wrappers.append(stop_at_sql)
        try:
            self._speak(client, backend)
        except Stopped:
            backend.close()
            for open_ in getattr(getattr(backend, "pool", None), "connections", []):
                open_.close()
            self.world.sync()
            raise

    def _speak(self, client: Client, backend: Backend) -> None:
        grant: Grant | None = None
        reading: Any = None
        for word in self.program.clients[client.label].split():
            client.memory["word"] = word
            if word in ("try", "wait"):
                claim = client.memory["claim"] = Claim(name=NAME, ttl=TTL)
                claim.cancelled, client.attempt_at = Pause(), None
                grant = backend.acquire(claim, 3600 if word == "wait" else 0)
                if grant is None:
                    return
                client.memory["holds"] = True
                continue
            assert grant is not None
            try:
                if word == "renew":
                    backend.extend(claim, grant.token, TTL)
                elif word == "release":
                    backend.release(claim, grant.token)
                    client.memory["holds"] = False
                elif word == "read":
                    fence = stock.Fence(epoch=1, token=grant.token)
                    strategy = self.program.strategy
                    reading = stock.claim_stock(
                        stock_id=self.stock_id, strategy=strategy, fence=fence
                    )
                elif reading:
                    stock.commit(stock.reserve(reading=reading, orders=[(client.label, 1)]))
            except InventoryError:
                reading = None
            except LockLost:
                client.memory["holds"] = False


def _is_free(backend: Backend) -> bool:
    """Acquire and release the lock."""
    claim = Claim(name=NAME, ttl=TTL)
    if grant := backend.acquire(claim, 0):
        backend.release(claim, grant.token)
    return grant is not None
