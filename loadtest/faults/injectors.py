"""Faults that strike real processes and servers, and tell whether they fired.

    fault = KillServers([redis], lane="redis")
    fault.strike()
    fault.fired         # False when nothing was hit: the run then proves nothing
    ...
    fault.heal()

A fault of a process strikes best at a fail point, where it does it to itself (`strike_self`).
"""

import ctypes
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import redis
from kazoo.client import KazooClient

from devservers import HOST, Redis, Server
from devservers.process import process_stat
from loadtest.faults.clock import Clock

PATIENCE = 20.0
How = Literal["stop", "gil", "wait", "kill"]
Seen = TypeVar("Seen")


class FaultFailed(RuntimeError):
    """Something that a fault waits for did not come true: it did not fire."""


def until(look: Callable[[], Seen], what: str = "the condition", seconds: float = PATIENCE) -> Seen:
    """What `look` returns, once that is true; FaultFailed when it is not in time."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise FaultFailed(f"{what} did not come true in {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.02)  # a look may be a query, or at every process there is
    return seen


def strike_self(how: How) -> None:
    """For a process at a fail point: be stopped (SIGSTOP), be killed, or wait for a line on stdin.

    "gil" waits too, but no other thread runs meanwhile, so that no watchdog renews.
    """
    if how in ("stop", "kill"):
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    elif how == "gil":
        word = ctypes.create_string_buffer(3)
        ctypes.PyDLL(None).read(0, word, 3)  # "on\n"; PyDLL, unlike CDLL, keeps the GIL
    else:
        sys.stdin.readline()


class Fault(ABC):
    """One fault, struck once; `lane` is who it strikes, for the picture."""

    what = ""
    lane = ""
    fired = False

    @abstractmethod
    def strike(self) -> None:
        """Let it happen, and see that it did."""

    @abstractmethod
    def heal(self) -> None:
        """Put it right, as far as it can be."""


@dataclass
class KillServers(Fault):
    """SIGKILL of servers, which come back empty when healed."""

    servers: Sequence[Server]
    lane: str = ""
    what: str = "killed"

    def strike(self) -> None:
        for server in self.servers:
            server.kill()
        self.fired = not any(server.is_running for server in self.servers)

    def heal(self) -> None:
        for server in self.servers:
            server.start()


@dataclass
class CutReplication(Fault):
    """A replica that hears nothing more of its master; `promote` makes it the master."""

    replica: Redis
    lane: str = ""
    what: str = "replication cut"

    def strike(self) -> None:
        with redis.Redis.from_url(self.replica.url) as direct:
            until(lambda: direct.info("replication")["master_link_status"] == "up", "replication")
            direct.replicaof(HOST, "1")
            self.fired = direct.info("replication")["master_link_status"] == "down"

    def promote(self) -> None:
        """As a sentinel would."""
        with redis.Redis.from_url(self.replica.url) as direct:
            direct.replicaof("NO", "ONE")

    heal = promote


@dataclass
class ClockJump(Fault):
    """Wall clocks that jump; `clocks` drive the servers since before their start."""

    clocks: Sequence[Clock]
    servers: Sequence[Redis]
    seconds: float
    lane: str = ""
    what: str = "clock jumps"

    def strike(self) -> None:
        before = [_time_of(server) for server in self.servers]
        self._shift(self.seconds)
        jumped = [_time_of(s) - b for s, b in zip(self.servers, before, strict=True)]
        self.fired = all(abs(one - self.seconds) < 5 for one in jumped)

    def heal(self) -> None:
        self._shift(0)

    def _shift(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.shift(seconds)


def _time_of(server: Redis) -> float:
    with redis.Redis.from_url(server.url) as direct:
        return float(direct.time()[0])


@dataclass
class ExpireSession(Fault):
    """A ZooKeeper session that its server ends, as after a cut longer than its time."""

    hosts: str
    client_id: tuple[int, bytes]
    lane: str = ""
    what: str = "session expired"

    def strike(self) -> None:
        # A second client with the same id: when it leaves, it takes the session along.
        twin = KazooClient(self.hosts, client_id=self.client_id)
        twin.start()
        self.fired = twin.client_id[0] == self.client_id[0]
        twin.stop()
        twin.close()

    def heal(self) -> None:
        """A session that has ended stays so."""


def state_of(pid: int) -> str:
    """The letter of a process's state as in `ps`; empty when there is none (Linux)."""
    try:
        return process_stat(pid)[0]
    except OSError:
        return ""
