"""Faults of real processes and servers. Each records whether it was injected.

    fault = KillServers([redis], lane="redis")
    fault.inject()
    fault.injected      # False when nothing was hit: the run then proves nothing
    ...
    fault.recover()

A fault of a process is best injected at a fail point, by the process itself (`inject_into_self`).
`devservers.base.injected_faults` counts what this process has injected.
"""

import ctypes
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import redis

from devservers import HOST, Redis, Server
from devservers.base import injected_faults
from devservers.faults.clock import Clock
from devservers.faults.waiting import until

ProcessFault = Literal["stop", "gil", "wait", "kill"]


def inject_into_self(fault: ProcessFault) -> None:
    """Stop (SIGSTOP) or kill the calling process, or make it wait for a line on stdin.

    "gil" waits without releasing the GIL, so that no watchdog thread can renew a lease.
    """
    if fault in ("stop", "kill"):
        os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
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

    @abstractmethod
    def inject(self) -> None:
        """Inject the fault, and set `injected` if that is confirmed."""

    @abstractmethod
    def recover(self) -> None:
        """Undo the fault as far as possible."""


@dataclass
class KillServers(Fault):
    """SIGKILL of servers; `recover` starts them again without their data."""

    servers: Sequence[Server]
    lane: str = ""
    what: str = "killed"

    def inject(self) -> None:
        """Kill the servers."""
        for server in self.servers:
            server.kill()
        self.injected = not any(server.is_running for server in self.servers)

    def recover(self) -> None:
        """Start the servers."""
        for server in self.servers:
            server.start()


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
        jumped = [_time_of(s) - b for s, b in zip(self.servers, before, strict=True)]
        self.injected = all(abs(jump - self.seconds) < 5 for jump in jumped)

    def recover(self) -> None:
        """Set the clocks right."""
        self._shift(0)

    def _shift(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.shift(seconds)


def _time_of(server: Redis) -> float:
    with redis.Redis.from_url(server.url) as direct:
        return float(direct.time()[0])
