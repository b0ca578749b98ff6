"""Faults of a load test: what strikes whom, once a share of the stock is sold.

The strike is made by the buyer who comes to the fail point between look and write: whoever is
struck holds the lock. A run whose fault did not fire says nothing, and its verdict is "not-run".
"""

import os
import time
from collections.abc import Sequence
from ctypes import Array, c_long
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

from loadtest.faults.injectors import ProcessFault, inject_into_self


class Fault(NamedTuple):
    """What happens, and to whom."""

    says: str
    holder: ProcessFault | None = None
    """What becomes of the holder's process."""
    server: str | None = None
    """The server of the lab's stores that is killed and comes back."""


FAULTS: dict[str, Fault] = {
    "none": Fault("nothing goes wrong"),
    "pause-holder": Fault("the holder's process stops past its lease", holder="stop"),
    "kill-holder": Fault("the holder's process is killed and replaced", holder="kill"),
    "kill-redis": Fault("Redis is killed and comes back empty", server="redis"),
    "kill-redlock": Fault("one of the five masters is killed, comes back empty", server="redlock"),
    "kill-zookeeper": Fault("ZooKeeper is killed and comes back", server="zookeeper"),
    "kill-database": Fault("the database is killed and comes back", server="database"),
}
TTL = 1.5
"""Seconds of a lease, and of a ZooKeeper session, in a run with a fault; else the shop's own."""
PAUSE = 2 * TTL
"""Seconds for which a holder is stopped; where its lock passes on, until that has been seen."""
OUTAGE = 1.0
"""Seconds for which a server is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """The fault of one run, in the hands of every buyer's process."""

    fault: Fault
    after: tuple[int, ...]
    """Pieces sold before it fires, each time."""
    struck: "Synchronized[int]"
    """ProcessFault often it has fired."""
    notices: Connection
    """Where the director hears of it."""

    def try_firing(self, sold: "Array[c_long]") -> None:
        """Called at the fail point by each who holds the lock."""
        number = self.struck.value
        if number == len(self.after) or sum(sold) < self.after[number]:
            return
        with self.struck.get_lock():
            if self.struck.value > number:
                return  # another one was faster
            self.struck.value += 1
        self.notices.send((time.monotonic(), os.getpid()))
        if self.fault.holder is not None:
            inject_into_self(self.fault.holder)


@dataclass(slots=True)
class Fired:
    """When it fired, monotonic, which process it struck, and when a stopped one went on."""

    at: float
    pid: int
    resumed: float | None = None


def marks(name: str, fired: Sequence[Fired], started: float) -> list[tuple[float, str]]:
    """What a chart shows of it: seconds since the start, and a word."""
    fault = FAULTS[name]
    found = []
    for one in fired:
        at = one.at - started
        found.append((round(at, 3), name))
        if one.resumed is not None:
            found.append((round(one.resumed - started, 3), "resumed"))
        elif fault.server:
            found.append((round(at + OUTAGE, 3), "back"))
    return found
