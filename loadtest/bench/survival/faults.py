"""The faults. Each puts one lock through one of them, and leaves the record in a folder."""

import os
import re
import time
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

from django.db import connections

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
LONG_LEASE = 60.0
WAITERS, PROCESSES = 64, 2
GAP, HOLD, TURNS = 0.03, 0.002, 20.0
STORES = "REDIS_URL", "REDLOCK_URLS", "ZOOKEEPER_HOSTS", "DATABASE_URL"
TAKES_LOCK = {
    "redis": rb"\bNX\b|EVAL|FCALL|SUBSCRIBE",
    "redlock": rb"\bNX\b|EVAL|FCALL",
    "mysql": rb"GET_LOCK|INSERT|UPDATE",
    "postgresql": rb"advisory",
    # The length, the number and the type of a request: create, a transaction or create2.
    "zookeeper": rb"(?s)^.{8}\x00\x00\x00[\x01\x0e\x0f]",
}
"""By family: the request that takes the lock."""
_serial = count(1)


class Trial(ExitStack):
    """The processes of one library, used for one run after another."""

    def __init__(self, stores: Stores, name: str, root: Path) -> None:
        super().__init__()
        self.stores, self.name, self.library = stores, name, LIBRARIES[name]
        self.root = self.folder = root
        self.workers: dict[str, WorkerProcess] = {}
        self.proxies: list[Proxy] = []
        self.callback(self.end_processes)

    def end_processes(self) -> None:
        """End the processes, which may be anywhere after a failure."""
        for worker in self.workers.values():
            worker.close()

    def begin(self) -> None:
        """Start a new record, on a lock that was never used."""
        self.lock = f"survival-{next(_serial)}"
        self.folder = self.root / self.lock
        self.folder.mkdir(parents=True)
        self.note = self.enter_context(closing(Recorder(self.folder, "lab"))).note

    def open(
        self, actor: str, *, warm: bool = True, far: bool = False, lease: float = LEASE
    ) -> WorkerProcess:
        """Return the process of this name with an open handle; a far one is behind proxies."""
        worker = self.workers.get(actor)
        if worker is None or not worker.is_alive:
            log = self.root / f"{actor}-{next(_serial)}.log"
            path = "loadtest.bench.survival.worker:Commands"
            worker = WorkerProcess(path, self._proxied() if far else {}, log=log)
            self.workers[actor] = worker
        given = {"folder": str(self.folder), "actor": actor, "name": self.lock, "lease": lease}
        _do(worker, "open", library=self.name, **given)
        if warm:
            _do(worker, "warm")
        return worker

    def _proxied(self) -> dict[str, str]:
        def proxy_of(found: re.Match[str]) -> str:
            proxy = self.enter_context(Proxy(int(found[1]), connect_timeout=0))
            self.proxies.append(proxy)
            return proxy.url

        urls = {one: os.environ.get(one, "") for one in STORES}
        return {one: re.sub(r"127\.0\.0\.1:(\d+)", proxy_of, url) for one, url in urls.items()}

    def hold(self, lease: float = LEASE) -> WorkerProcess:
        """Let A acquire the lock; return its process."""
        holder = self.open("A", lease=lease)
        if not self.acquired(holder, PATIENCE):
            raise FaultFailed("a free lock was not granted")
        return holder

    def hold_and_wait(self) -> tuple[WorkerProcess, WorkerProcess]:
        """Let A acquire the lock and B wait for it; return their processes."""
        waiter = self.open("B")
        holder = self.hold()
        waiter.send("acquire", wait=PATIENCE)
        waiter.is_silent(QUEUED)
        return holder, waiter

    def acquired(self, worker: WorkerProcess, wait: float) -> bool:
        """Let the worker ask for the lock; return True if it was granted."""
        worker.send("acquire", wait=wait)
        return self.granted(worker)

    def granted(self, worker: WorkerProcess) -> bool:
        """Return True if the worker was granted the lock; end one that ignores its time limit."""
        try:
            return bool(worker.receive(PATIENCE + LEASE).get("granted"))
        except FaultFailed:
            worker.close()
            return False


def _do(worker: WorkerProcess, what: str, **fields: Any) -> None:
    reply = worker.call(what, **fields)
    if not reply["ok"]:
        raise FaultFailed(f"{what}: {reply['error']}: {reply['message']}")


def killed(trial: Trial) -> str:
    """Kill the holder with SIGKILL while another waits."""
    holder, waiter = trial.hold_and_wait()
    trial.note("fault", "start", what="killed", target="A")
    holder.kill()
    if trial.granted(waiter):
        waiter.call("release")
    return f"process {holder.pid} ended by SIGKILL"


def paused(trial: Trial) -> str:
    """Stop the holder past its lease; it writes and releases late, and a third process tries."""
    third = trial.open("C")
    holder, waiter = trial.hold_and_wait()
    holder.pause()
    trial.note("fault", "start", what="paused")
    if is_replaced := not waiter.is_silent(LEASE + 2.0) and trial.granted(waiter):
        waiter.call("write")
    trial.note("fault", "end", what="paused")
    holder.resume()
    for what in ("write", "notice", "release"):
        holder.call(what)
    if is_replaced:
        trial.note("released late")
        if trial.acquired(third, 1.0):
            third.call("release")
    if is_replaced or trial.granted(waiter):
        waiter.call("release")
    return f"process {holder.pid} stopped (state T)"


def worked(trial: Trial) -> str:
    """Let the holder work longer than its lease, while another waits."""
    holder, waiter = trial.hold_and_wait()
    ends = time.monotonic() + WORK
    is_replaced = not waiter.is_silent(WORK) and trial.granted(waiter)
    time.sleep(max(0.0, ends - time.monotonic()))
    holder.call("release")
    if is_replaced or trial.granted(waiter):
        waiter.call("release")
    return f"process {holder.pid} worked for {WORK:g} s"


def restarted(trial: Trial) -> str:
    """Kill and start the store while the lock is held; another process then asks for it."""
    trial.open("B", warm=False)  # the process starts before the fault, its connection after
    holder, family = trial.hold(LONG_LEASE), trial.library.family
    server = "database" if family in ("mysql", "postgresql") else family
    trial.note("fault", "start", what="restarted")
    proof = Disturb([trial.stores.servers[server]], "kill").last(0.2)
    trial.note("fault", "end", what="restarted")
    other = trial.open("B", warm=False, lease=LONG_LEASE)
    if is_replaced := trial.acquired(other, 1.0):
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
        given = {"first": number, "step": PROCESSES, "of": WAITERS, "lease": LONG_LEASE}
        _do(process, "queue", library=trial.name, **given)
    connections.close_all()  # the store may have restarted
    requests, holder = requests_of(trial.library.family), trial.hold(LONG_LEASE)
    before, start = requests(), time.monotonic() + 0.2
    for process in processes:
        process.send("line_up", start=start, gap=GAP, wait=TURNS, hold=HOLD)
    time.sleep(max(0.0, start + GAP * WAITERS + QUEUED - time.monotonic()))
    holder.call("release")
    for process in processes:
        process.receive(TURNS + 3 * PATIENCE)
    trial.note("requests", commands=requests().since(before).commands)
    return f"{WAITERS} waiters in {PROCESSES} processes"


def unanswered(trial: Trial) -> str:
    """Lose the reply to the request that takes the lock; another process then asks for it."""
    other, far = trial.open("B"), trial.open("F", far=True)
    before = sum(proxy.lost_replies for proxy in trial.proxies)
    for proxy in trial.proxies:
        proxy.losing = re.compile(TAKES_LOCK[trial.library.family])
    is_granted = trial.acquired(far, 1.0)
    lost = sum(proxy.lost_replies for proxy in trial.proxies) - before
    for proxy in trial.proxies:
        proxy.losing = None
    if is_granted:
        far.call("release")
    if trial.acquired(other, PATIENCE):
        other.call("release")
    return f"{lost} replies lost" if lost else ""
