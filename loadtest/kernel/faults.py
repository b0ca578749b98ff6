"""The faults of load tests: injected once a share of the stock is sold, or on request.

The buyer that reaches the fail point between read and write injects the fault: it holds the lock.
A run without its planned fault proves nothing, and its verdict is "not-run". The faults themselves
are in `devservers.faults.injectors`. An entry of FAULTS is all that a new one needs if it is a
`ProcessFault` of the holder or kills a server of `Stores`; another fault of a server needs a branch
in `fail`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from devservers import Redis
from devservers.faults.injectors import CutReplication, Disturb, ProcessFault
from loadtest.kernel.topology import Stores


class Fault(NamedTuple):
    """A fault and its target."""

    description: str | Promise
    button: str | Promise = ""
    holder: ProcessFault | None = None
    """The fault of the process that holds the lock."""
    server: str | None = None
    """The server of the lab that is killed, and started again or replaced."""

    def applies(self, backend: str, store: str) -> bool:
        """Return True if it can hit a run under this lock on this database."""
        if self.server == "database":
            return store != "sqlite"
        return self.server == backend or (self.holder is not None and backend != "none")

    def may_forget(self, backend: str) -> bool:
        """Return True if it hits the server that keeps the grants of this lock."""
        if self.server == "database":
            return backend not in ("redis", "redlock", "zookeeper")
        return self.server == backend


FAULTS: dict[str, Fault] = {
    "none": Fault(_("no fault")),
    "pause-holder": Fault(
        _("the holder's process is paused past its lease"), _("Pause the holder"), holder="stop"
    ),
    "kill-holder": Fault(
        _("the holder's process is killed and replaced"), _("Kill the holder"), holder="kill"
    ),
    "kill-redis": Fault(_("Redis is killed and comes back empty"), _("Kill Redis"), server="redis"),
    "cut-replication": Fault(
        _("a cut-off replica of Redis replaces its killed master"),
        _("Cut replication"),
        server="redis",
    ),
    "kill-redlock": Fault(
        _("one of five masters is killed and comes back empty"),
        _("Kill one of five masters"),
        server="redlock",
    ),
    "kill-zookeeper": Fault(
        _("ZooKeeper is killed and comes back"), _("Kill ZooKeeper"), server="zookeeper"
    ),
    "kill-database": Fault(
        _("the database is killed and comes back"), _("Kill the database"), server="database"
    ),
}
NAMES = tuple(FAULTS)
BACK = gettext_noop("back")
ENDS = {
    "pause-holder": gettext_noop("resumed"),
    "kill-holder": gettext_noop("replaced"),
    "cut-replication": gettext_noop("promoted"),
}
TTL = 1.5
"""Seconds of a lease, and of a ZooKeeper session, in a run with a planned fault."""
PAUSE_SECONDS = 2 * TTL
"""How long a holder is stopped at least; if its lock expires, until another buyer got it."""
OUTAGE_SECONDS = 1.0
"""How long a server is down, or its replica cut off before it replaces the server."""


def fail(name: str, stores: Stores) -> str:
    """Inject a fault of a server; return its proof once it is over, or nothing without effect."""
    what = FAULTS[name].server or ""
    server = stores.servers[what]
    if name != "cut-replication":
        killed = Disturb([server], "kill").last(OUTAGE_SECONDS)
        return killed and f"{what}, {killed}"
    assert isinstance(server, Redis)
    replica = stores.start(Redis(prefer="embedded", replica_of=server))
    cut = CutReplication(replica)
    cut.inject()
    time.sleep(OUTAGE_SECONDS)
    cut.replace(server)
    stores.servers[what] = replica
    return f"replica cut off from process {server.pid}, promoted after its SIGKILL"


@dataclass(slots=True)
class Injection:
    """The monotonic time of an injection, the process that injected it, its end and the proof."""

    at: float
    pid: int
    name: str
    end: float | None = None
    proof: str = ""


def marks(injections: Sequence[Injection], started: float) -> list[tuple[float, str]]:
    """Return the labels of a chart, each with its seconds since the start."""
    found = [(one.at, one.name) for one in injections]
    found += [(one.end, ENDS.get(one.name, BACK)) for one in injections if one.end is not None]
    return [(round(at - started, 3), label) for at, label in sorted(found)]
