"""A worker process of the shop that takes locks and buys on request, as the target of faults.

    with ShopWorker() as buyer:
        buyer.open(folder, "buyer A", {"redis": {...}}, 2.0)   # its events are recorded there
        buyer.start("buy", sale=1, user=7, fault="stop")       # SIGSTOP between read and write
        buyer.wait_for_fault()
        ...
        buyer.end_fault()
        buyer.receive()                                        # {"order": ...} or {"error": ...}

A request may carry a fault: the child reports it and injects it into itself at the fail point `at`.
"""

import random
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.translation import gettext_noop

from devservers.base import injected_faults
from devservers.faults.injectors import ProcessFault, inject_into_self
from devservers.faults.waiting import FaultFailed, until
from devservers.faults.worker import WorkerProcess, send_to_parent
from devservers.process import is_stopped
from loadtest.kernel.history import Recorder
from loadtest.load.buyers import buy
from locking import LockError, failpoints, policy
from locking import locks as handler
from locking.policy.lock import PolicyLock
from shop.errors import ShopError
from shop.models import Sale
from shop.sales.stock_lock import lock_name

CHECK = "stock.read"
DESCRIPTIONS = {"stop": "paused", "gil": "GIL held", "wait": "works", "kill": "killed"}

ANSWERS = {
    "order": gettext_noop("gets an order"),
    "queued": gettext_noop("gets a reservation"),
    "sold_out": gettext_noop("is told: sold out"),
    "limit": gettext_noop("is told: limit reached"),
    "paid": gettext_noop("has paid"),
    "refunded": gettext_noop("is refunded"),
}
"""What a visitor of a flash sale is told, in words."""


class ShopWorker(WorkerProcess):
    """The parent's side."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        super().__init__("loadtest.load.shop_worker:ShopCommands", env)
        self._fault = ""
        self.is_busy = False
        """True until the reply to a request has arrived."""

    def open(
        self,
        folder: Path,
        name: str,
        locks: Mapping[str, Any],
        timeout: float,
        databases: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the name in the history, LOCKS, and the seconds that a purchase waits for its lock.

        `databases` are entries of DATABASES beside the default one.
        """
        fields = {"folder": str(folder), "actor": name, "locks": dict(locks), "timeout": timeout}
        self.call("open", databases=dict(databases or {}), **fields)

    def start(self, do: str, *, fault: str = "", at: str = CHECK, **fields: Any) -> None:
        """Send a request without waiting for its reply."""
        self._fault, self.is_busy = fault, True
        if fault:
            self.send("arm", fault=fault, at=at)
        self.send(do, **fields)

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its reply."""
        self.start(do, **fields)
        return self.receive()

    def wait_for_fault(self) -> None:
        """Wait until the fault is injected; raise FaultFailed if the request ends without it."""
        line = super().receive()
        if line != {"fault": self._fault}:
            raise FaultFailed(f"the fault {self._fault!r} was not injected: {line}")
        if self._fault == "stop":
            until(lambda: is_stopped(self.pid), "a stopped process")
        elif self._fault == "kill":
            self.wait()
        injected_faults[f"{type(self).__name__} faulty between read and write"] += 1

    def end_fault(self) -> None:
        """Let the process continue."""
        if self._fault == "stop":
            self.resume()
        else:
            self.write_line("on")

    def receive(self, seconds: float | None = 60.0) -> dict[str, Any]:
        """Return the reply to the request."""
        reply = super().receive(seconds)
        self.is_busy = False
        return reply


def add_database(alias: str, entry: dict[str, Any]) -> None:
    """Add an entry to DATABASES of a running process, unless it exists."""
    if alias not in connections.settings:
        known = {**connections.settings, alias: entry}
        connections.settings.update(connections.configure_settings(known))


class ShopCommands:
    """The child's side: a method for each request."""

    ERRORS = (LockError,)

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.held: dict[str, Any] = {}
        self.fault: ProcessFault | None = None

    def open(
        self,
        *,
        folder: str,
        actor: str,
        locks: dict[str, Any],
        timeout: float,
        databases: dict[str, Any],
    ) -> object:
        """Take the settings of one run."""
        self.held.clear()
        self.fault = None
        handler.close()
        for alias, entry in databases.items():
            add_database(alias, entry)
        settings.LOCKS.update(locks)
        settings.LOCK_TIMEOUT = timeout
        settings.HARD_DEADLINE = 1.3 * max(1.0, timeout)
        if self.recorder is not None:
            self.recorder.close()
        self.recorder = Recorder(Path(folder), actor)
        self.recorder.watch_purchases()
        for alias in locks:
            self.recorder.watch(handler[alias])
        return {"ok": True}

    def arm(self, *, fault: ProcessFault, at: str) -> None:
        """Prepare a fault of the next request at the fail point `at`."""

        def inject() -> None:
            failpoints.disarm(at)
            self.inject(fault)

        if at == CHECK:
            self.fault = fault
        else:
            failpoints.arm(at, inject)

    def acquire(
        self, *, alias: str, name: str, timeout: float, ttl: float, renew: bool = True
    ) -> object:
        """Acquire a lock of this backend."""
        lock = handler[alias].lock(name, ttl=ttl, renew=renew)
        started = time.monotonic()
        if ok := lock.acquire(timeout=timeout):
            self.held[name] = lock
        return {"ok": ok, "seconds": time.monotonic() - started}

    def release(self, *, name: str) -> object:
        """Release a lock that `acquire` got."""
        self.held.pop(name).release()
        return {"ok": True}

    def buy(
        self,
        *,
        sale: int,
        user: int,
        key: str = "k",
        patience: float = 0.0,
        think: float = 0.0,
        renew: bool = True,
        early: bool = False,
    ) -> object:
        """Buy one unit, with `think` seconds between read and write.

        While the shop is overloaded, retry for `patience` seconds. `renew=False` takes the lease
        from the watchdog; `early` releases the lock before the commit.
        """
        assert self.recorder is not None
        policy.invalidate()

        def check() -> None:
            time.sleep(think)
            lease = PolicyLock(lock_name(sale)).lease
            if lease is not None and (early or not renew):
                lease.table.renewer.remove(lease)
            if lease is not None and early:
                lease.backend.release(lease.claim, lease.token)
            fault, self.fault = self.fault, None
            if fault:
                self.inject(fault)

        get = partial(Sale.objects.select_related("stock").get, pk=sale)
        with failpoints.armed(CHECK, check):
            end = buy(self.recorder, get, user, key=key, patience=patience, pauses=random.Random())
        said = {"order": True} if end.kind == "order" else {"error": end.kind}
        return {**said, "seconds": end.ended - end.began}

    def visit(
        self, *, served_by: str, sale: int, user: int, name: str, fields: dict[str, Any]
    ) -> object:
        """Call a method of the class that serves a flash sale, and return what it told the user."""
        assert self.recorder is not None
        policy.invalidate()
        served = resolve_name(served_by)(self.recorder, sale, user)
        try:
            told = getattr(served, name)(**fields)
        except ShopError as error:
            told = error.code
        if told in ANSWERS:
            self.recorder.note("step", what=ANSWERS[told], code=served.refusals.get(told, ()))
        return {"told": told}

    def inject(self, fault: ProcessFault) -> None:
        """Inject a fault into this process, after recording and reporting it."""
        assert self.recorder is not None
        actor = self.recorder.actor
        target = {"target": actor} if fault == "kill" else {}
        self.recorder.note("fault", "start", what=DESCRIPTIONS[fault], lane=actor, **target)
        send_to_parent({"fault": fault})
        inject_into_self(fault)
