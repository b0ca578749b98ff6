"""The host process of a game: its stores, its buyers, and the requests of the pages.

Each request is one JSON line on a connection of its own, and so is the reply:

    {"do": "state"}                                      the state, see `Game.state`
    {"do": "begin", "level": "race", "guarded": false}   start a level again, or another one
    {"do": "act", "buyer": "A", "verb": "step", "turn": 3}
    {"do": "end"}                                        end the game

A reply {"error": "outdated"} means that the action is not possible now; nothing was changed.
"""

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connection, connections

from devservers import Redis
from devservers.faults.waiting import until
from devservers.faults.worker import emit
from inventory.models import Stock
from loadtest.game.buyers import Buyer
from loadtest.game.levels import LEVELS, STOPS
from loadtest.history.recorder import Event, history
from loadtest.scenarios.testbed import SharedResources, Testbed
from locking import locks
from locking.backends.base import Held
from shop.administration.audit import audit_sale

TTL = 1.5
"""Seconds of a lease: so long must a visitor wait for a paused holder's lease to end."""
START_SECONDS = 20.0
SETTLE_SECONDS = 2.0
"""Longest time for which a step waits until every buyer has stopped or waits for the lock."""
TICK = 0.02
REQUEST_SECONDS = 2.0


def create_tables() -> None:
    """Create the tables of all models in the empty database; migrations would take seconds."""
    with connection.schema_editor() as editor:
        for model in apps.get_models():
            if model._meta.can_migrate(connection):
                editor.create_model(model)


class Game:
    """A level, its sale and its buyers."""

    def __init__(self, server: Redis) -> None:
        self.server = server
        self.shared = SharedResources()
        self.shared.redis = server
        self.testbed: Testbed | None = None
        self.buyers: list[Buyer] = []

    def close(self) -> None:
        """Kill the buyers, and remove what the level has recorded."""
        for buyer in self.buyers:
            if not buyer.is_over:
                buyer.kill()
        self.buyers = []
        if self.testbed is not None:
            self.testbed.close()

    def begin(self, level: str, guarded: bool) -> None:
        """Start a level from its beginning: a new sale, and every buyer before its first stop."""
        self.close()
        self.server.send(b"FLUSHALL\r\n")
        self.level, self.is_guarded, self.turn = LEVELS[level], guarded, 0
        variant = self.level.variant(guarded)
        self.variant = variant
        self.testbed = testbed = Testbed(self.shared)
        location = self.server.url if variant.alias != "none" else ""
        testbed.add_lock(variant.alias, variant.backend, location, TTL=TTL)
        testbed.activate(variant.alias, variant.strategy)
        self.sale = testbed.open_sale(self.level.stock)
        customers = [testbed.create_customer() for _name in self.level.buyers]
        # A forked process must not share a connection.
        connections.close_all()
        locks.close()
        lines = {name: (one.path, one.start()) for name, one in (STOPS | variant.stops).items()}
        for name, customer in zip(self.level.buyers, customers, strict=True):
            options = {
                "folder": str(testbed.folder),
                "actor": f"buyer {name}",
                "locks": {variant.alias: settings.LOCKS[variant.alias]},
                "timeout": 3600.0,  # a waiter waits as long as the game lasts
                "databases": {},
            }
            purchase = {"sale": self.sale.pk, "user": customer, **variant.buy}
            self.buyers.append(Buyer(name, lines, options, purchase))
        for buyer in self.buyers:
            buyer.listen(START_SECONDS)

    # --- actions ---

    def actions(self) -> list[tuple[str, str]]:
        """Return the buyer and the verb of each possible action."""
        if self.has_won():
            return []
        found = [(one.name, "step") for one in self.buyers if one.at]
        first = self.buyers[0]
        if first.at in self.level.pauses_at and not first.is_paused and self.is_holder(first):
            found.append((first.name, "pause"))
        if self.level.kills and first.at:
            found.append((first.name, "kill"))
        return found

    def act(self, buyer: str, verb: str, turn: int) -> bool:
        """Run one action; return False if it is not possible now."""
        if turn != self.turn or (buyer, verb) not in self.actions():
            return False
        self.turn += 1
        one = next(one for one in self.buyers if one.name == buyer)
        getattr(self, f"_{verb}")(one)
        self._settle()
        return True

    def _step(self, one: Buyer) -> None:
        holders = [held for held in self.held() if self.owner_of(held) != one.name]
        is_release, was_paused = one.at == "release", one.is_paused
        if was_paused:
            self._bed.recorder.note("fault", "end", what="paused", lane=f"buyer {one.name}")
        one.step()
        one.listen(SETTLE_SECONDS if is_release else TICK)
        if is_release and holders and not self.held():
            self._bed.mark_deleted(f"buyer {self.owner_of(holders[0])}", by=f"buyer {one.name}")

    def _pause(self, one: Buyer) -> None:
        self._bed.recorder.note("fault", "start", what="paused", lane=f"buyer {one.name}")
        one.pause()
        until(lambda: not self.is_holder(one), "the end of the lease", 10 * TTL)

    def _kill(self, one: Buyer) -> None:
        lane = f"buyer {one.name}"
        self._bed.recorder.note("fault", "start", what="killed", lane=lane, target=lane)
        one.kill()
        if self.has_won():
            self._bed.recorder.note("kept", lane=lane)

    def _settle(self) -> None:
        """Wait until each buyer has stopped, or waits for a lock that another one holds."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while running := [one for one in self.buyers if one.is_running]:
            for one in running:
                one.listen(TICK)
            held = self.held()
            waiting = [one for one in self.buyers if one.is_running]
            if held and all(self.owner_of(held[0]) != one.name for one in waiting):
                return
            if time.monotonic() > deadline:
                return

    # --- state ---

    @property
    def _bed(self) -> Testbed:
        assert self.testbed is not None
        return self.testbed

    def held(self) -> list[Held]:
        """Return the locks in the store."""
        backend = locks[self.variant.alias]
        return backend.inspect() if backend.capabilities.lists_holders else []

    def events(self) -> list[Event]:
        """Return what happened in this level."""
        return history(self._bed.folder)

    def owner_of(self, held: Held) -> str:
        """Return the name of the buyer that holds a lock."""
        owners = {e["owner"]: e["actor"] for e in self.events() if e["do"] == "acquire"}
        return str(owners.get(held.owner, "")).removeprefix("buyer ")

    def is_holder(self, one: Buyer) -> bool:
        """Return True if the store says that the buyer holds the lock."""
        return any(self.owner_of(held) == one.name for held in self.held())

    def has_won(self) -> bool:
        """Return True if units were oversold, or a dead buyer's lock never ends."""
        if self.level.kills:
            return self.buyers[0].is_killed and any(
                held.expires_in is None and self.owner_of(held) == self.buyers[0].name
                for held in self.held()
            )
        return audit_sale(sale=self.sale).oversold > 0

    def state(self) -> dict[str, Any]:
        """Return the state as JSON: buyers, stock row, locks, events and possible actions."""
        for one in self.buyers:
            one.listen(0)
        row = Stock.objects.get(pk=self.sale.stock_id)
        audit = audit_sale(sale=self.sale)
        held = self.held()
        events = self.events()
        renewals = {e["owner"]: e for e in events if e["do"] == "renew"}
        return {
            "level": self.level.name,
            "guarded": self.is_guarded,
            "turn": self.turn,
            "won": self.has_won(),
            "over": all(one.is_over for one in self.buyers),
            "moves": any(one.is_running or one.is_killed or one.is_paused for one in self.buyers),
            "actions": self.actions(),
            "buyers": [self._buyer(one) for one in self.buyers],
            "stock": {
                "initial": audit.initial,
                "quantity": row.quantity,
                "sold": audit.held + audit.sold,
                "token": row.fence_token,
            },
            "locks": [
                {
                    "name": one.name,
                    "owner": self.owner_of(one),
                    "token": one.token,
                    "left": one.expires_in,
                }
                for one in held
            ],
            "events": [e for e in events if e["do"] != "renew" or e is renewals[e["owner"]]],
        }

    def _buyer(self, one: Buyer) -> dict[str, Any]:
        status = "killed" if one.is_killed else "paused" if one.is_paused else "waits"
        if one.reply is not None:
            status = one.reply.get("error", "bought")
        elif one.at and not one.is_paused:
            status = "stopped"
        return {"name": one.name, "at": one.at, "status": status}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute a request and return the reply."""
        match request.pop("do"):
            case "begin":
                self.begin(**request)
            case "act":
                if not self.act(**request):
                    return {"error": "outdated"}
        return self.state()


def serve(game: Game, address: Path, *, idle: float, life: float) -> None:
    """Answer requests until one ends the game.

    It also ends after `life` seconds, and `idle` seconds after the last action.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(16)
        ends = time.monotonic() + life
        idle_ends = time.monotonic() + idle
        emit("ready")
        while (left := min(ends, idle_ends) - time.monotonic()) > 0:
            listener.settimeout(left)
            with suppress(OSError, ValueError):  # a client that has gone
                client, _address = listener.accept()
                with client:
                    client.settimeout(REQUEST_SECONDS)
                    request = json.loads(client.makefile("rb").readline())
                    if request["do"] != "state":
                        idle_ends = time.monotonic() + idle
                    ends = 0.0 if request["do"] == "end" else ends
                    client.sendall(json.dumps(game.answer(request)).encode() + b"\n")
