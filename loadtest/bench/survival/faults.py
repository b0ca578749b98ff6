"""The faults. Each puts one lock through one of them, and leaves the record in a folder."""

import os
import re
import socket
import time
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

from devservers.base import injected_faults
from devservers.faults.injectors import Disturb
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed
from devservers.faults.worker import WorkerProcess
from loadtest.bench.services import requests_of
from loadtest.bench.survival.libraries import LEASE, LIBRARIES
from loadtest.kernel.history import Recorder
from loadtest.kernel.topology import Stores

PATIENCE = 8.0
"""Seconds after which a waiter gives up: "never", for a lease of 2 s."""
QUEUED = 0.3
WORK = 2 * LEASE
WAITERS, PROCESSES = 64, 4
GAP, HOLD, TURNS = 0.03, 0.002, 20.0
STORES = "REDIS_URL", "REDLOCK_URLS", "ZOOKEEPER_HOSTS", "DATABASE_URL"
TAKES_LOCK = {
    "redis": rb"\bNX\b|EVAL|FCALL|SUBSCRIBE",
    "redlock": rb"\bNX\b|EVAL|FCALL",
    "mysql": rb"GET_LOCK|INSERT|UPDATE",
    "postgresql": rb"advisory",
    # The length, the number and the type of a request: create, create2 or a transaction.
    "zookeeper": rb"(?s)^.{8}\x00\x00\x00[\x01\x0e\x0f]",
}
"""By family: what the request that takes the lock looks like."""
_serial = count(1)


class LossyProxy(Proxy):
    """Loses the reply to the next request that matches the pattern, with its connection."""

    losing: re.Pattern[bytes] | None = None
    lost = 0
    _is_due = False

    def _send_request(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        if self.losing and self.losing.search(data):
            self.losing, self._is_due = None, True
        super()._send_request(source, sink, data)

    def _send_reply(self, sink: socket.socket, data: bytes) -> None:
        if self._is_due:
            self._is_due = False
            self.lost += 1
            injected_faults["Proxy reply lost"] += 1
            raise ConnectionResetError  # the proxy closes both ends
        super()._send_reply(sink, data)


class Trial:
    """The processes of one library, one of them behind proxies; used for one run after another."""

    def __init__(self, stores: Stores, name: str, folder: Path) -> None:
        self.stores, self.name, self.library = stores, name, LIBRARIES[name]
        self.root, self.folder = folder, folder
        self.workers: dict[str, WorkerProcess] = {}
        self.stack = ExitStack()
        self.proxies: list[LossyProxy] = []

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self.workers.values():
            worker.close()
        self.stack.close()

    def begin(self) -> None:
        """Start a new record, on a lock that was never used."""
        self.lock = f"survival-{next(_serial)}"
        self.folder = self.root / self.lock
        self.folder.mkdir(parents=True)
        recorder = self.stack.enter_context(closing(Recorder(self.folder, "lab")))
        self.note = recorder.note

    def open(self, actor: str, *, warm: bool = True, far: bool = False) -> WorkerProcess:
        """Return the process of this name, with an open handle on the lock."""
        worker = self.workers.get(actor)
        if worker is None or not worker.is_alive:
            env = self._behind_proxies() if far else {}
            path = "loadtest.bench.survival.worker:Commands"
            log = self.root / f"{actor}-{next(_serial)}.log"
            worker = self.workers[actor] = WorkerProcess(path, env, log=log)
        _call(
            worker, "open", folder=str(self.folder), actor=actor, library=self.name, name=self.lock
        )
        if warm:
            _call(worker, "warm")
        return worker

    def _behind_proxies(self) -> dict[str, str]:
        def proxied(found: re.Match[str]) -> str:
            proxy = LossyProxy(int(found[1]), connect_timeout=0)
            self.proxies.append(self.stack.enter_context(proxy))
            return proxy.url

        urls = {one: os.environ.get(one, "") for one in STORES}
        return {one: re.sub(r"127\.0\.0\.1:(\d+)", proxied, url) for one, url in urls.items()}

    def hold(self) -> WorkerProcess:
        """Let A acquire the lock; return its process."""
        holder = self.open("A")
        if not holder.call("acquire", wait=PATIENCE).get("granted"):
            raise FaultFailed("a free lock was not granted")
        return holder

    def await_turn(self, wait: float = PATIENCE) -> WorkerProcess:
        """Let B wait for the lock."""
        waiter = self.workers["B"]
        waiter.send("acquire", wait=wait)
        waiter.is_silent(QUEUED)
        return waiter

    def result_of(self, worker: WorkerProcess, wait: float) -> bool:
        """Let the worker ask for the lock; return True if it was granted."""
        worker.send("acquire", wait=wait)
        return self.result(worker)

    def result(self, worker: WorkerProcess) -> bool:
        """Return True if the worker was granted the lock; end one that ignores its time limit."""
        try:
            return bool(worker.receive(PATIENCE + LEASE).get("granted"))
        except FaultFailed:
            worker.close()
            return False


def _call(worker: WorkerProcess, do: str, **fields: Any) -> None:
    """Send a request that must succeed."""
    reply = worker.call(do, **fields)
    if not reply["ok"]:
        raise FaultFailed(f"{do}: {reply['error']}: {reply['message']}")


def killed(trial: Trial) -> str:
    """Kill the holder with SIGKILL while another waits."""
    trial.open("B")
    holder = trial.hold()
    waiter = trial.await_turn()
    trial.note("fault", "start", what="killed", target="A")
    holder.kill()
    if trial.result(waiter):
        waiter.call("release")
    return f"process {holder.pid} ended by SIGKILL"


def paused(trial: Trial) -> str:
    """Stop the holder past its lease; it writes and releases late, and a third process tries."""
    third = trial.open("C")
    trial.open("B")
    holder = trial.hold()
    waiter = trial.await_turn()
    trial.note("fault", "start", what="paused")
    holder.pause()
    is_replaced = not waiter.is_silent(LEASE + 2.0) and trial.result(waiter)
    if is_replaced:
        waiter.call("write")
    trial.note("fault", "end", what="paused")
    holder.resume()
    for what in ("write", "notice", "release"):
        holder.call(what)
    if is_replaced:
        trial.note("released late")
        if trial.result_of(third, 1.0):
            third.call("release")
    if is_replaced or trial.result(waiter):
        waiter.call("release")
    return f"process {holder.pid} stopped (state T)"


def worked(trial: Trial) -> str:
    """Let the holder work longer than its lease, and another wait."""
    trial.open("B")
    holder = trial.hold()
    waiter = trial.await_turn()
    ends = time.monotonic() + WORK
    is_replaced = not waiter.is_silent(WORK) and trial.result(waiter)
    time.sleep(max(0.0, ends - time.monotonic()))
    holder.call("write")
    holder.call("release")
    if is_replaced or trial.result(waiter):
        waiter.call("release")
    return f"process {holder.pid} worked for {WORK:g} s"


def restarted(trial: Trial) -> str:
    """Kill and start the store while the lock is held; another then asks for the lock."""
    holder = trial.hold()
    server = "database" if trial.library.family in ("mysql", "postgresql") else trial.library.family
    trial.note("fault", "start", what="restarted")
    proof = Disturb([trial.stores.servers[server]], "kill").last(0.2)
    trial.note("fault", "end", what="restarted")
    other = trial.open("B", warm=False)
    is_replaced = trial.result_of(other, 1.0)
    if is_replaced:
        other.call("write")
    for what in ("write", "notice", "release"):
        holder.call(what)
    if is_replaced:
        other.call("release")
    return proof


def queued(trial: Trial) -> str:
    """Let 64 waiters arrive one after another, and then release the lock."""
    processes = [trial.open(f"Q{number}", warm=False) for number in range(PROCESSES)]
    for number, process in enumerate(processes):
        given = {"library": trial.name, "first": number, "step": PROCESSES, "of": WAITERS}
        _call(process, "queue", **given)
    requests = requests_of(trial.library.family)
    holder = trial.hold()
    before = requests()
    start = time.monotonic() + 0.2
    for process in processes:
        process.send("line_up", start=start, gap=GAP, wait=TURNS, hold=HOLD)
    time.sleep(max(0.0, start + GAP * WAITERS + QUEUED - time.monotonic()))
    holder.call("release")
    for process in processes:
        process.receive(TURNS + 3 * PATIENCE)
    used = requests().since(before)
    trial.note("requests", commands=used.commands)
    return f"{WAITERS} waiters in {PROCESSES} processes"


def unanswered(trial: Trial) -> str:
    """Lose the reply to the request that takes the lock; another process then asks for it."""
    other = trial.open("B")
    far = trial.open("F", far=True)
    before = sum(proxy.lost for proxy in trial.proxies)
    for proxy in trial.proxies:
        proxy.losing = re.compile(TAKES_LOCK[trial.library.family])
    is_granted = trial.result_of(far, 1.0)
    lost = sum(proxy.lost for proxy in trial.proxies) - before
    for proxy in trial.proxies:
        proxy.losing = None
    if is_granted:
        far.call("release")
    if trial.result_of(other, PATIENCE):
        other.call("release")
    return f"{lost} replies lost" if lost else ""
