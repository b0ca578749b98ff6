"""Defects that were found in this project once, put back into the processes of a torture run.

`Torture(commands=COMMANDS, env={VARIABLE: "A1"})` runs with one; production code does not know it.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

from django.utils import timezone

from devservers.faults.waiting import FaultFailed
from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.connection import Connection
from locking.backends.redis.scripts import RELEASE
from locking.backends.redlock import RedLockBackend
from locking.claims import Held
from locking.exceptions import LockUnavailable
from locking.handler import locks
from locking.policy import active, switching
from locking.refresh import clock
from shop.reservations import reconciliation, store
from shop.web import purchase
from verification.torture.commands import Commands
from verification.torture.plan import Plan, generate
from verification.torture.runner import Torture

VARIABLE = "TORTURE_MUTANT"
SECONDS = 600.0
COMMANDS = "tests.verification.torture.mutants:Mutated"


class Mutated(Commands):
    """A process with the mutant that its environment names."""

    def __init__(self) -> None:
        super().__init__()
        MUTANTS[os.environ[VARIABLE]].patch()


def swap(owner: Any, name: str, new: Any) -> Any:
    """Replace an attribute of a module, class or object; return the original."""
    original = getattr(owner, name, None)
    setattr(owner, name, new)
    return original


def a1() -> None:
    """Measure the drain from the time at which the switch was written, not from its first read."""

    def written(row: Any) -> float:
        return clock() - (timezone.now() - row.changed_at).total_seconds()

    switching.first_seen = written


def a3() -> None:
    """List only locks that a majority of RedLock's masters reported."""

    def inspect(self: RedLockBackend) -> list[Held]:
        seen: Counter[str] = Counter()

        def counted(*args: Any) -> Any:
            found = scan(self, *args)
            seen.update(value for _key, value, _left in found or ())
            return found

        swap(self, "_scan", counted)
        return [one for one in original(self) if seen[f"{one.owner} {one.token}"] >= 2]

    scan = getattr(RedLockBackend, "_scan")  # noqa: B009
    original = swap(RedLockBackend, "inspect", inspect)


def a5() -> None:
    """End the drain after a ttl if the old store does not reply to the process that switches."""

    def held(alias: str) -> set[str]:
        try:
            return set(original(alias))
        except LockUnavailable:
            row = active.stored_policy()
            drains = row.state == row.State.DRAINING
            if drains and clock() - active.first_seen(row) < active.MAX_AGE + locks[alias].ttl:
                raise
            return set()

    original = swap(switching, "_names_held", held)


def b5() -> None:
    """Leave an acquire without a reply as it is."""

    def run(
        self: Connection, script: Any, keys: Any, args: Any = (), undo: Any = None, *limit: float
    ) -> Any:
        return original(self, script, keys, args, None, *limit)

    original = swap(Connection, "run", run)
    swap(RedisBackend, "repeat_release", lambda self, claim, entry: None)


def f2() -> None:
    """Send a release once."""

    def release(self: RedisBackend, claim: Any, entry: str = "") -> Any:
        return getattr(self, "_run")(RELEASE, claim, self.ticks(), entry)  # noqa: B009

    swap(RedisBackend, "_release", release)


def f5() -> None:
    """Replace a generation that another process is filling, without its reservations."""
    mirror, read_ledger = (getattr(reconciliation, name) for name in ("_mirror", "_read_ledger"))

    def load(sale: Any) -> None:
        sale.refresh_from_db(fields=["generation", "stock"])
        state = store.read_state(sale=sale)
        if state is None or state.stock is None:
            fill(sale)

    def fill(sale: Any) -> None:
        old = copy(sale)
        sale.generation = 1 + secrets.randbelow(2**31 - 1)
        store.create(sale=sale)
        current = type(sale).objects.filter(pk=sale.pk, generation=old.generation)
        if current.update(generation=sale.generation):
            mirror(sale, *read_ledger(sale))
            store.set_stock(sale=sale, quantity=sale.stock.quantity)
            store.delete(sale=old)

    swap(reconciliation, "_load", load)


def f9() -> None:
    """Refuse every form from memory, also one that is sent again."""
    admit = purchase.admit
    swap(purchase, "admit", lambda wanted: admit(wanted._replace(is_first_attempt=True)))


class Mutant(NamedTuple):
    backend: str
    """The backend and the workload that meet the defect."""
    workload: str
    seed: int
    """The seed before the first one; from most of these, the defect is found soon."""
    patch: Callable[[], object]


MUTANTS = {
    "A1": Mutant("database-mariadb", "switch", 3000, a1),
    "A3": Mutant("redlock", "switch", 2000, a3),
    "A5": Mutant("redis", "switch", 3000, a5),
    "B5": Mutant("redis", "mutex", 1000, b5),
    "F2": Mutant("redis", "mutex", 1000, f2),
    "F5": Mutant("shop-sqlite", "stock", 6, f5),
    "F9": Mutant("shop-sqlite", "stock", 12, f9),
}


def plan_that_finds(mutant: str) -> Plan | None:
    """Return the first plan in which torture finds a mutant within ten minutes."""
    backend, workload, seed, _patch = MUTANTS[mutant]
    until = time.monotonic() + SECONDS
    with Torture(commands=COMMANDS, env={VARIABLE: mutant}) as torture:
        while time.monotonic() < until:
            seed += 1
            plan = generate(seed, backend, (workload,))
            try:
                if torture.run(plan).violations:
                    return plan
            except FaultFailed:  # a process hangs
                return plan
    return None
