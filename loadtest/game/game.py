"""A level of the game on real servers: its sale, its lock and its buyers."""

import time
from typing import Any

from django.conf import settings
from django.db import connections

from devservers.faults.waiting import until
from inventory.models import Stock
from loadtest.charts.timeline_data import short_tokens
from loadtest.game.buyers import Buyer
from loadtest.game.levels import LEVELS, STOPS
from loadtest.kernel.history import Event, history
from loadtest.kernel.topology import Stores
from loadtest.scenarios.testbed import Testbed
from locking import locks
from locking.claims import Held
from shop.administration.audit import audit_sale

TTL = 1.5
"""Seconds of a lease."""
SETTLE_SECONDS = 2.0
"""Longest time for which a move waits until every buyer has stopped or waits for the lock."""
START_SECONDS, TICK = 20.0, 0.02


class Game:
    """A level, its sale and its buyers, from `begin` on."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.buyers: list[Buyer] = []
        self.testbed = Testbed(stores)

    def close(self) -> None:
        """Kill the buyers, and remove what the level has recorded."""
        for buyer in self.buyers:
            buyer.kill()
        self.testbed.close()

    def begin(self, level: str, guarded: bool) -> None:
        """Start a level from its beginning: a new sale, and every buyer before its first stop."""
        self.close()
        self.stores.redis.send(b"FLUSHALL\r\n")
        self.level = LEVELS[level]
        self.variant = variant = self.level.variant(guarded)
        self.won, self.alias = False, variant.alias
        self.testbed = testbed = Testbed(self.stores)
        testbed.use(variant.strategy, variant.alias, variant.backend, TTL=TTL)
        self.sale = testbed.open_sale(self.level.stock)
        customers = {name: testbed.create_customer() for name in self.level.buyers}
        options = {
            "folder": str(testbed.folder),
            "locks": {variant.alias: settings.LOCKS[variant.alias]},
            "timeout": 3600.0,  # a waiter waits until the level ends
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

    def act(self, buyer: str, verb: str) -> bool:
        """Run one action; return False if it is not possible now."""
        one = next(one for one in self.buyers if one.name == buyer)
        if not self.verbs(one)[verb]:
            return False
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

    def view(self, events: list[Event]) -> dict[str, Any]:
        """Return what the page shows after these events; stock and lock are read from the stores.

        What differs in each run is left out: tokens are "#1", "#2" ..., or "" where there is none.
        """
        for one in self.buyers:
            one.listen(0)
        self.won = self.has_won()
        stock, audit = Stock.objects.get(pk=self.sale.stock_id), audit_sale(sale=self.sale)
        held, holder, tokens = self.held(), self.holder(), short_tokens(events)
        fences = tokens if self.variant.strategy == "fenced" else {}
        asked = {e["actor"]: e["type"] for e in events if e["do"] == "acquire"}
        in_order = [who[-1] for who, reply in asked.items() if reply == "invoke"]
        # A killed buyer has asked, too.
        waits = [b.name for b in self.buyers if b.status in ("runs", "paused") and not b.at]
        return {
            "won": self.won,
            "over": not {one.status for one in self.buyers} & {"runs", "stopped", "paused"},
            "buyers": [
                {"name": one.name, "status": one.status, "at": one.at, "verbs": self.verbs(one)}
                | _known(f"buyer {one.name}", events, fences)
                for one in self.buyers
            ],
            "initial": audit.initial,
            "sold": audit.held + audit.sold,
            "quantity": stock.quantity,
            "lock": held
            and {
                "name": "sale:1",
                "owner": holder.name if holder else "?",
                "ends": held.expires_in and 0,
                "token": tokens.get(held.token or 0, ""),
            },
            "row_token": tokens.get(stock.fence_token, ""),
            "waiting": [name for name in in_order if name in waits],
        }

    def events(self) -> list[Event]:
        """Return what happened, with the last deadline of each lease instead of its renewals."""
        events = history(self.testbed.folder)
        last = {e["owner"]: e["deadline"] for e in events if "deadline" in e}
        for event in events:
            if "deadline" in event:
                event["deadline"] = last[event["owner"]]
        return [event for event in events if event["do"] != "renew"]


def _known(actor: str, events: list[Event], tokens: dict[int, str]) -> dict[str, Any]:
    """Return what a buyer knows: its token, the stock as it read it, and whether it wrote."""
    last = {e["do"]: e for e in events if e["actor"] == actor and e.get("type") == "ok"}
    return {
        "token": tokens.get(last.get("acquire", {}).get("token") or 0, ""),
        "has_read": last.get("read", {}).get("quantity"),
        "has_written": "write" in last,
    }
