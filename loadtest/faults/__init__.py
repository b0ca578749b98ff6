"""Faults that strike real processes and servers, and tell whether they fired.

    fault = StopProcess(pid)
    fault.strike()
    ...
    fault.heal()
    fault.fired         # False when nothing was hit: the run then proves nothing

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
from pathlib import Path
from typing import Literal

import redis

from loadtest.faults.clock import Clock
from loadtest.processes import HOST, Server
from loadtest.servers import Redis

PATIENCE = 20.0
How = Literal["stop", "gil", "wait", "kill"]


class FaultFailed(RuntimeError):
    """Something that a fault waits for did not come true: it did not fire."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Poll until the condition holds; FaultFailed when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise FaultFailed(f"{what} did not come true in {seconds:g} s")
        time.sleep(0.002)


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
class StopProcess(Fault):
    """SIGSTOP until healed: alive, connected, silent."""

    pid: int
    lane: str = ""
    what: str = "paused"

    def strike(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: state_of(self.pid) == "T", f"process {self.pid} stopping")
        self.fired = True

    def heal(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@dataclass
class KillProcess(Fault):
    """SIGKILL; nothing heals it."""

    pid: int
    lane: str = ""
    what: str = "killed"

    def strike(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: state_of(self.pid) in ("Z", "X", ""), f"process {self.pid} dying")
        self.fired = True

    def heal(self) -> None:
        """A dead process stays dead."""


@dataclass
class KillServers(Fault):
    """SIGKILL of servers, which come back empty when healed."""

    servers: Sequence[Server]
    lane: str = ""
    what: str = "killed"

    def strike(self) -> None:
        for server in self.servers:
            server.kill()
        self.fired = not any(server.running for server in self.servers)

    def heal(self) -> None:
        for server in self.servers:
            server.start()


@dataclass
class StopServers(Fault):
    """SIGSTOP of servers until healed."""

    servers: Sequence[Server]
    lane: str = ""
    what: str = "paused"

    def strike(self) -> None:
        for server in self.servers:
            server.pause()
        until(
            lambda: all(state_of(server.pid) == "T" for server in self.servers),
            "the servers stopping",
        )
        self.fired = True

    def heal(self) -> None:
        for server in self.servers:
            server.resume()


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


def debug_sleep(server: Redis, seconds: float) -> None:
    """Let a Redis serve nobody for a while; returns when it does again."""
    with redis.Redis.from_url(server.url, socket_timeout=seconds + PATIENCE) as direct:
        direct.execute_command("DEBUG", "SLEEP", str(seconds))


def state_of(pid: int) -> str:
    """The letter of a process's state as in `ps`; empty when there is none (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
