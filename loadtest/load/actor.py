"""Another process of the shop that takes locks and buys on command, to be struck by a fault.

    with Actor() as buyer:
        buyer.open(folder, "buyer A", {"redis": {...}}, 2.0)   # what it does is recorded there
        buyer.start("buy", sale=1, user=7, fault="stop")       # SIGSTOP between look and write
        buyer.struck()
        ...
        buyer.on()
        buyer.answer()                                         # {"order": ...} or {"error": ...}

The parent writes one JSON command a line; the child answers each with one line, and says `struck`
before the fault of a command strikes it at the fail point `at`.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from devservers.process import process_state
from loadtest.faults.child import ANSWER_SECONDS, Child
from loadtest.faults.injectors import inject_into_self
from loadtest.faults.waiting import FaultFailed, until

CHECK = "purchase.check"
SAYS = {"stop": "paused", "gil": "GIL held", "wait": "works", "kill": "killed"}


class Actor(Child):
    """The parent's side."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        super().__init__("loadtest.load.actor", env)
        self._fault = ""
        self.is_busy = False
        """Whether a command's answer has not been heard."""

    def open(
        self,
        folder: Path,
        name: str,
        locks: Mapping[str, Any],
        timeout: float,
        databases: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a part: its name in the history, its LOCKS, the seconds a purchase waits for one.

        `databases` are entries of DATABASES beside the default one.
        """
        part = {"folder": str(folder), "actor": name, "locks": dict(locks), "timeout": timeout}
        self.call("open", databases=dict(databases or {}), **part)

    def start(self, do: str, *, fault: str = "", at: str = CHECK, **fields: Any) -> None:
        """Give a command without waiting for its answer."""
        self._fault, self.is_busy = fault, True
        self.send({"do": do, "fault": fault, "at": at, **fields})

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        """Give a command, and wait for its answer."""
        self.start(do, **fields)
        return self.answer()

    def struck(self) -> None:
        """Wait until the fault has struck; FaultFailed when the command ended without it."""
        said = super().answer()
        if said != {"struck": self._fault}:
            raise FaultFailed(f"the fault {self._fault!r} did not fire: {said}")
        if self._fault == "stop":
            until(lambda: process_state(self.pid) == "T", "the process stopping")
        elif self._fault == "kill":
            self._process.wait(ANSWER_SECONDS)

    def on(self) -> None:
        """End the fault."""
        if self._fault == "stop":
            self.resume()
        else:
            self.write("on")

    def answer(self) -> dict[str, Any]:
        """What came of the command."""
        said = super().answer()
        self.is_busy = False
        return said


def add_database(alias: str, entry: dict[str, Any]) -> bool:
    """Another entry of DATABASES, while the process runs; False when it was there."""
    from django.db import connections

    is_new = alias not in connections.settings
    if is_new:
        connections.settings.update(
            connections.configure_settings({**connections.settings, alias: entry})
        )
    return is_new


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - that is our output


class _Child:
    """The child's side: a method for each command."""

    def __init__(self) -> None:
        from loadtest.history.recorder import Recorder

        self.recorder: Recorder | None = None
        self.held: dict[str, Any] = {}

    def open(
        self,
        *,
        folder: str,
        actor: str,
        locks: dict[str, Any],
        timeout: float,
        databases: dict[str, Any],
    ) -> object:
        from django.conf import settings

        from loadtest.history.recorder import Recorder
        from locking import locks as handler

        self.held.clear()
        handler.close()
        for alias, entry in databases.items():
            add_database(alias, entry)
        settings.LOCKS.update(locks)
        settings.LOCK_TIMEOUT = timeout
        settings.HARD_DEADLINE = 1.3 * max(1.0, timeout)
        if self.recorder is not None:
            self.recorder.close()
        self.recorder = Recorder(Path(folder), actor)
        self.recorder.watch_shop()
        for alias in locks:
            self.recorder.watch(handler[alias])
        return {"ok": True}

    def acquire(
        self, *, alias: str, name: str, timeout: float, ttl: float, renew: bool = True
    ) -> object:
        from locking import locks

        lock = locks[alias].lock(name, ttl=ttl, renew=renew)
        asked = time.monotonic()
        if ok := lock.acquire(timeout=timeout):
            self.held[name] = lock
        return {"ok": ok, "seconds": time.monotonic() - asked}

    def release(self, *, name: str) -> object:
        self.held.pop(name).release()
        return {"ok": True}

    def buy(
        self,
        *,
        sale: int,
        user: int,
        patience: float = 0.0,
        think: float = 0.0,
        renew: bool = True,
        early: bool = False,
    ) -> object:
        """Buy a piece, `think` seconds after the look; told "busy", try for `patience` seconds."""
        from locking import policy
        from locking.failpoints import arm
        from shop.errors import Overloaded, ShopError
        from shop.models import Sale, User
        from shop.purchase import place_order as checkout

        assert self.recorder is not None
        policy.invalidate()
        if think:
            arm(CHECK, partial(time.sleep, think))
        began = time.monotonic()
        with _locked_so(renew=renew, early=early):
            while True:
                row = Sale.objects.select_related("stock").get(pk=sale)
                form = {"user": user, "key": "k", "quantity": 1}
                try:
                    with self.recorder.attempt("buy", **form) as said:
                        placed = checkout.place_order(
                            customer=User(pk=user), sale=row, quantity=1, key="k"
                        )
                        said |= {"order": placed.order.number, "replayed": placed.replayed}
                except ShopError as error:
                    seconds = time.monotonic() - began
                    if not isinstance(error, Overloaded) or seconds >= patience:
                        return {"error": error.code, "seconds": seconds}
                else:
                    return {"order": placed.order.number, "seconds": time.monotonic() - began}

    def strike(self, fault: str) -> None:
        """At the fail point, told to the history and to the parent before it happens."""
        assert self.recorder is not None
        actor = self.recorder.actor
        victim = {"victim": actor} if fault == "kill" else {}
        self.recorder.note("fault", "start", what=SAYS[fault], lane=actor, **victim)
        _say(struck=fault)
        inject_into_self(fault)  # type: ignore[arg-type]
        self.recorder.note("fault", "heal", what=SAYS[fault], lane=actor)


@contextlib.contextmanager
def _locked_so(*, renew: bool, early: bool) -> Iterator[None]:
    """A purchase's lock as it should not be: not renewed, or released before the commit."""
    from locking.policy.lock import PolicyLock
    from shop.purchase import place_order as checkout

    class Early(PolicyLock):
        def __exit__(self, *exc_info: object) -> None:
            """It was released, unless the fault did not come by."""
            if self.lease is not None:
                self.release()

    was = checkout.lock  # type: ignore[attr-defined]
    kind = Early if early else PolicyLock
    checkout.lock = partial(kind, renew=renew)  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        checkout.lock = was  # type: ignore[attr-defined]


def _serve() -> None:
    import django

    django.setup()
    from locking import LockError
    from locking.failpoints import arm, disarm
    from locking.policy.lock import PolicyLock
    from shop.purchase.place_order import lock_name

    child = _Child()
    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        do, fault, at = command.pop("do"), command.pop("fault"), command.pop("at")

        def strike(fault: str = fault, at: str = at, command: Any = command) -> None:
            disarm(at)
            if command.get("early"):  # F8: what was looked at is not written yet
                PolicyLock(lock_name(command["sale"])).release()
            child.strike(fault)

        if fault:
            arm(at, strike)
        try:
            answer = getattr(child, do)(**command)
        except LockError as error:
            answer = {"ok": False, "error": type(error).__name__}
        disarm(at)
        _say(**answer)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
    _serve()
