"""The host process of a game: its stores, its buyers, and the requests of the pages.

A request is one JSON line, {"do": "state"} or "end", or {"do": "begin", "level", "guarded"}, or
{"do": "act", "buyer", "verb", "turn"}, or {"do": "undo", "turn"}. The reply is the state, or {} if
the action is not possible.
"""

import json
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections

from devservers.faults.waiting import FaultFailed, until
from devservers.faults.worker import emit
from inventory.models import Stock
from loadtest.game.buyers import Buyer
from loadtest.game.levels import LEVELS, STOPS
from loadtest.kernel.history import Event, history
from loadtest.kernel.topology import Stores
from loadtest.scenarios.testbed import Testbed
from locking import locks
from locking.claims import Held
from shop.administration.audit import audit_sale

TTL = 1.5
"""Seconds of a lease: as long as a visitor waits for the end of a paused holder's lease."""
SETTLE_SECONDS = 2.0
"""Longest time for which a step waits until every buyer has stopped or waits for the lock."""
START_SECONDS, TICK = 20.0, 0.02


class Game:
    """A level, its sale and its buyers."""

    def __init__(self, stores: Stores, level: str) -> None:
        self.stores = stores
        self.buyers: list[Buyer] = []
        self.testbed = Testbed(stores)
        self.begin(level, guarded=False)

    def close(self) -> None:
        """Kill the buyers, and remove what the level has recorded."""
        for buyer in self.buyers:
            buyer.kill()
        self.testbed.close()

    def begin(self, level: str, guarded: bool) -> None:
        """Start a level from its beginning: a new sale, and every buyer before its first stop."""
        self.close()
        self.stores.redis.send(b"FLUSHALL\r\n")
        self.name, self.level, self.is_guarded = level, LEVELS[level], guarded
        variant = self.level.variant(guarded)
        self.turn, self.won, self.alias = 0, False, variant.alias
        self.moves: list[tuple[str, str]] = []
        self.testbed = testbed = Testbed(self.stores)
        testbed.use(variant.strategy, variant.alias, variant.backend, TTL=TTL)
        self.sale = testbed.open_sale(self.level.stock)
        customers = {name: testbed.create_customer() for name in self.level.buyers}
        options = {
            "folder": str(testbed.folder),
            "locks": {variant.alias: settings.LOCKS[variant.alias]},
            "timeout": 3600.0,  # a waiter waits as long as the game lasts
            "databases": {},
        }
        # A forked process must not share a connection.
        connections.close_all()
        locks.close()
        self.buyers = []
        for name, customer in customers.items():
            buy = {"sale": self.sale.pk, "user": customer, "early": "early" in variant.stops}
            own = options | {"actor": f"buyer {name}"}
            self.buyers.append(Buyer(name, STOPS | variant.stops, own, buy))
        for buyer in self.buyers:
            buyer.listen(START_SECONDS)

    def verbs(self, one: Buyer) -> dict[str, bool]:
        """Return the actions of a buyer, and which of them are possible now."""
        goes_on = bool(one.at) and not self.won
        found = {"step": goes_on}
        if one is self.buyers[0] and self.level.kills:
            found["kill"] = goes_on
        if one is self.buyers[0] and self.level.pauses_at:
            goes_on = goes_on and one.at in self.level.pauses_at and one.status != "paused"
            found["pause"] = goes_on and self.holder() is one
        return found

    def act(self, buyer: str, verb: str, turn: int) -> bool:
        """Run one action; return False if it is not possible now."""
        one = next((one for one in self.buyers if one.name == buyer), None)
        if one is None or turn != self.turn or not self.verbs(one).get(verb):
            return False
        self.turn += 1
        self.moves.append((buyer, verb))
        before, is_release, lane = self.holder(), one.at == "release", f"buyer {buyer}"
        note = self.testbed.note
        if one.status == "paused":
            note("fault", "end", what="paused", lane=lane)
        getattr(one, verb)()
        if verb == "kill":
            note("fault", "start", what="killed", lane=lane, target=lane)
        if verb == "pause":
            note("fault", "start", what="paused", lane=lane)
            until(lambda: self.holder() is not one, "the end of the lease", 10 * TTL)
        self._settle()
        if is_release and before not in (None, one, self.holder()):
            self.testbed.mark_deleted(f"buyer {before.name}", by=lane)
        if verb == "kill" and self.has_won():
            note("kept", lane=lane)
        return True

    def undo(self, turn: int) -> bool:
        """Take the last action back: start again, and repeat all actions before it.

        Return False if there is none. The turn still grows, so that a form that is sent twice takes
        back one action.
        """
        if turn != self.turn or not self.moves:
            return False
        moves = self.moves[:-1]
        self.begin(self.name, self.is_guarded)
        with suppress(FaultFailed):  # then fewer actions are repeated
            for move in moves:
                until(partial(self._repeat, *move), "the repeated action", 2 * TTL)
        self.turn = turn + 1
        return True

    def _repeat(self, buyer: str, verb: str) -> bool:
        for one in self.buyers:
            one.listen(0)  # a waiter may have been granted the lock of a dead holder
        return self.act(buyer, verb, self.turn)

    def _settle(self) -> None:
        """Wait until each buyer has stopped, or waits for a lock that another one holds."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while running := [one for one in self.buyers if one.status == "runs"]:
            for one in running:
                one.listen(TICK)
            if self.holder() not in (None, *running) or time.monotonic() > deadline:
                return

    def held(self) -> Held | None:
        """Return the lock of the sale as the store has it."""
        backend = locks[self.alias]
        return next(iter(backend.inspect()), None) if backend.capabilities.lists_holders else None

    def holder(self) -> Buyer | None:
        """Return the buyer that holds the lock according to the store."""
        held = self.held()  # an owner is named host:pid:...
        return next((one for one in self.buyers if held and f":{one.pid}:" in held.owner), None)

    def has_won(self) -> bool:
        """Return True if units were oversold, or the lock of a dead buyer never ends."""
        if not self.level.kills:
            return audit_sale(sale=self.sale).oversold > 0
        first, held = self.buyers[0], self.held()
        is_dead = first.status == "killed" and self.holder() is first
        return held is not None and held.expires_in is None and is_dead

    def state(self) -> dict[str, Any]:
        """Return the state as JSON; stock and lock are read from the stores."""
        for one in self.buyers:
            one.listen(0)
        self.won = self.has_won()
        stock, audit = Stock.objects.get(pk=self.sale.stock_id), audit_sale(sale=self.sale)
        held, holder = self.held(), self.holder()
        statuses = {one.status for one in self.buyers}
        return {
            "level": self.name,
            "guarded": self.is_guarded,
            "turn": self.turn,
            "can_undo": bool(self.moves),
            "won": self.won,
            "over": not statuses & {"runs", "stopped", "paused"},
            "moves": bool(statuses & {"runs", "paused", "killed"}),
            "buyers": [
                {"name": one.name, "status": one.status, "at": one.at, "verbs": self.verbs(one)}
                for one in self.buyers
            ],
            "initial": audit.initial,
            "sold": audit.held + audit.sold,
            "quantity": stock.quantity,
            "token": stock.fence_token,
            "lock": held and asdict(held) | {"owner": holder.name if holder else "?"},
            "events": self.events(),
        }

    def events(self) -> list[Event]:
        """Return what happened, with the last deadline of each lease instead of its renewals."""
        events = history(self.testbed.folder)
        last = {e["owner"]: e["deadline"] for e in events if "deadline" in e}
        for event in events:
            if "deadline" in event:
                event["deadline"] = last[event["owner"]]
        return [event for event in events if event["do"] != "renew"]


def serve(game: Game, address: Path, *, idle: float, life: float) -> None:
    """Answer requests for `life` seconds, until one ends the game, or until it was `idle`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(16)
        ends, idle_ends = time.monotonic() + life, time.monotonic() + idle
        emit("ready")
        while (left := min(ends, idle_ends) - time.monotonic()) > 0:
            listener.settimeout(left)
            with suppress(OSError, ValueError):  # a client that has gone
                client, _address = listener.accept()
                with client:
                    client.settimeout(SETTLE_SECONDS)
                    request = json.loads(client.makefile("rb").readline())
                    if (do := request.pop("do")) != "state":
                        idle_ends = time.monotonic() + idle
                    if do == "begin":
                        game.begin(**request)
                    is_done = do not in ("act", "undo") or getattr(game, do)(**request)
                    client.sendall(json.dumps(game.state() if is_done else {}).encode() + b"\n")
                    ends = 0.0 if do == "end" else ends
