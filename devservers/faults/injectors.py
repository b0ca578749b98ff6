"""Faults of real processes and servers. Each records whether it was injected.

    fault = Disturb([redis], "kill", lane="redis")
    fault.inject()
    fault.injected      # False when nothing was hit: the run then proves nothing
    ...
    fault.recover()
    fault.last(1.0)     # both, a second apart; the proof that it was injected, or nothing

A fault of a process is best injected at a fail point, by the process itself (`inject_into_self`).
A new fault of a link is an entry of DISTURBANCES; one that a server's process state shows, an entry
of STATES too. Any other is a class like `CutReplication`, which asks the server for its proof.
`devservers.base.injected_faults` counts what this process has injected.
"""

import ctypes
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import redis

from devservers import HOST, Redis, Server
from devservers.base import injected_faults
from devservers.faults.clock import Clock
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed, until
from devservers.process import process_state

ProcessFault = Literal["stop", "gil", "wait", "kill"]
DELAY, SHORT_DELAY = 0.2, 0.03
"""Seconds by which a slow link delays each message, so twice as many a request and its reply."""


def inject_into_self(fault: ProcessFault) -> None:
    """Stop (SIGSTOP) or kill the calling process, or make it wait for a line on stdin.

    "gil" waits without releasing the GIL, so that no watchdog thread can renew a lease.
    """
    if fault in ("stop", "kill"):
        # To this thread: a signal to the process goes to its main thread, and until that runs, on a
        # busy machine some milliseconds later, this one would go on.
        number = signal.SIGSTOP if fault == "stop" else signal.SIGKILL
        signal.pthread_kill(threading.get_ident(), number)
    elif fault == "gil":
        line = ctypes.create_string_buffer(3)
        ctypes.PyDLL(None).read(0, line, 3)  # "on\n"; PyDLL, unlike CDLL, keeps the GIL
    else:
        sys.stdin.readline()


class Fault(ABC):
    """One fault, injected once; `lane` is the row of the timeline that shows it."""

    what = ""
    lane = ""
    injected = False
    proof = ""

    @abstractmethod
    def inject(self) -> None:
        """Inject the fault, and set `injected` if that is confirmed."""

    @abstractmethod
    def recover(self) -> None:
        """Undo the fault as far as possible."""

    def last(self, seconds: float) -> str:
        """Inject the fault, undo it after `seconds`, and return its proof; empty if it missed."""
        self.inject()
        time.sleep(seconds)
        self.recover()
        return self.proof if self.injected else ""


DISTURBANCES: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "kill": (Server.kill, Server.start),
    "stop": (Server.pause, Server.resume),
    "cut": (lambda proxy: proxy.cut(refuse=True), Proxy.accept),
    "slow": (lambda proxy: setattr(proxy, "delay", DELAY), Proxy.lose),
    "delay": (
        lambda proxy: setattr(proxy, "delay", SHORT_DELAY),
        lambda proxy: setattr(proxy, "delay", 0.0),
    ),
    "silent": (Proxy.hold, Proxy.lose),
    "late": (Proxy.hold, Proxy.resume),
}
"""By name: how a server, or the proxy in front of it, is disturbed, and how that ends."""
STATES = {"kill": ({"", "Z"}, "ended by SIGKILL"), "stop": ({"T"}, "stopped (state T)")}
"""For each disturbance of a server: the states of its process that prove it, and the words."""


@dataclass
class Disturb(Fault):
    """Servers, or the proxies in front of them, are disturbed: `how` is one of DISTURBANCES."""

    targets: Sequence[Server | Proxy]
    how: str
    lane: str = ""
    what: str = "killed"

    def inject(self) -> None:
        """Disturb each of them; without a running server or a connection, nothing is hit."""
        servers = [one for one in self.targets if isinstance(one, Server) and one.is_running]
        links = sum(one.connections for one in self.targets if isinstance(one, Proxy))
        for target in self.targets:
            DISTURBANCES[self.how][0](target)
        if servers:
            states, word = STATES[self.how]
            until(lambda: {process_state(one.pid) for one in servers} <= states, word)
            self.proof = f"process {', '.join(str(one.pid) for one in servers)} {word}"
        elif links:
            self.proof = f"{links} connections: {self.how}"
        self.injected = bool(self.proof)

    def recover(self) -> None:
        """Let them work as before; a killed server starts with what it has written to its disk."""
        for target in self.targets:
            DISTURBANCES[self.how][1](target)


@dataclass
class CutReplication(Fault):
    """A replica that no longer receives writes of its master; `promote` makes it the master."""

    replica: Redis
    lane: str = ""
    what: str = "replication cut"

    def inject(self) -> None:
        """Point the replica at a port without a server."""
        with redis.Redis.from_url(self.replica.url) as direct:
            until(lambda: direct.info("replication")["master_link_status"] == "up", "replication")
            direct.replicaof(HOST, "1")
            self.injected = direct.info("replication")["master_link_status"] == "down"
        injected_faults[self.what] += self.injected

    def promote(self) -> None:
        """Make the replica a master, as a sentinel does."""
        with redis.Redis.from_url(self.replica.url) as direct:
            direct.replicaof("NO", "ONE")

    def replace(self, master: Redis) -> None:
        """Kill the master, and let the replica take its place on its port."""
        master.kill()
        self.promote()
        self.replica.send(b"CONFIG SET port %d\r\n" % master.port)
        self.replica.port, self.replica.replica_of = master.port, None
        self.replica.wait_ready()

    recover = promote


@dataclass
class ClockJump(Fault):
    """Wall clocks that jump; each of `clocks` drives its server since before the server's start."""

    clocks: Sequence[Clock]
    servers: Sequence[Redis]
    seconds: float
    lane: str = ""
    what: str = "clock jumps"

    def inject(self) -> None:
        """Shift the clocks."""
        before = [_time_of(server) for server in self.servers]
        self._shift(self.seconds)

        def has_jumped() -> bool:  # Valkey reads its clock later
            jumped = [_time_of(s) - b for s, b in zip(self.servers, before, strict=True)]
            return all(abs(jump - self.seconds) < 5 for jump in jumped)

        with suppress(FaultFailed):
            self.injected = until(has_jumped, "the jump", 2.0)

    def recover(self) -> None:
        """Set the clocks right."""
        self._shift(0)

    def _shift(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.shift(seconds)


def _time_of(server: Redis) -> float:
    with redis.Redis.from_url(server.url) as direct:
        return float(direct.time()[0])
