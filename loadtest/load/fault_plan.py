"""Faults of a load test: what is injected once a share of the stock is sold.

The buyer that reaches the fail point between read and write injects the fault: it holds the lock.
A run without its fault proves nothing, and its verdict is "not-run".
"""

import os
import time
from collections.abc import Sequence
from ctypes import Array, c_long
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from devservers.faults.injectors import ProcessFault, inject_into_self


class Fault(NamedTuple):
    """A fault and its target."""

    description: str | Promise
    holder: ProcessFault | None = None
    """The fault of the process that holds the lock."""
    server: str | None = None
    """The server of the lab that is killed and started again."""


FAULTS: dict[str, Fault] = {
    "none": Fault(_("nothing goes wrong")),
    "pause-holder": Fault(_("the holder's process stops past its lease"), holder="stop"),
    "kill-holder": Fault(_("the holder's process is killed and replaced"), holder="kill"),
    "kill-redis": Fault(_("Redis is killed and comes back empty"), server="redis"),
    "kill-redlock": Fault(_("one of five masters is killed, comes back empty"), server="redlock"),
    "kill-zookeeper": Fault(_("ZooKeeper is killed and comes back"), server="zookeeper"),
    "kill-database": Fault(_("the database is killed and comes back"), server="database"),
}
TTL = 1.5
"""Seconds of a lease, and of a ZooKeeper session, in a run with a fault."""
PAUSE_SECONDS = 2 * TTL
"""How long a holder is stopped at least; if its lock expires, until another buyer got it."""
OUTAGE_SECONDS = 1.0
"""How long a server is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrigger:
    """The fault of one run; every process of buyers has a copy."""

    fault: Fault
    after: tuple[int, ...]
    """Units sold before each injection."""
    count: "Synchronized[int]"
    """Injections so far."""
    notices: Connection
    """Tells the runner of each injection."""

    def try_firing(self, sold: "Array[c_long]") -> None:
        """Inject the fault if it is due; every holder calls this at the fail point."""
        number = self.count.value
        if number == len(self.after) or sum(sold) < self.after[number]:
            return
        with self.count.get_lock():
            if self.count.value > number:
                return  # another process was faster
            self.count.value += 1
        self.notices.send((time.monotonic(), os.getpid()))
        if self.fault.holder is not None:
            inject_into_self(self.fault.holder)


@dataclass(slots=True)
class Injection:
    """The monotonic time of an injection, its process, and when a stopped process continued."""

    at: float
    pid: int
    resumed: float | None = None


def marks(name: str, injections: Sequence[Injection], started: float) -> list[tuple[float, str]]:
    """Return the labels of a chart, each with its seconds since the start."""
    found = []
    for injection in injections:
        at = injection.at - started
        found.append((round(at, 3), name))
        if injection.resumed is not None:
            found.append((round(injection.resumed - started, 3), "resumed"))
        elif FAULTS[name].server:
            found.append((round(at + OUTAGE_SECONDS, 3), "back"))
    return found
