"""The faults. Each puts one lock through one of them, and leaves the record in a folder."""

import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from functools import cache, partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from django.db import connection, connections
from kazoo.client import KazooClient

from devservers import Redis, Server, ZooKeeperNode
from devservers.faults.clock import Clock
from devservers.faults.ensemble import leader
from devservers.faults.injectors import Disturb
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed, until
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
REPEATED = 3.0
"""Seconds in which a library may repeat a release."""
WAITERS, PROCESSES = 64, 2
GAP, HOLD, TURNS = 0.03, 0.002, 20.0
STORES = "REDIS_URL", "REDLOCK_URLS", "ZOOKEEPER_HOSTS", "DATABASE_URL"
JUMP = 3600.0
CUT = LEASE + 1.5
CANCELS, DELAY = 100, 0.002
"""Tasks, and the seconds by which a message is late: a timer ticks each millisecond."""
CHANGES_LOCK = {
    "redis": rb"\bNX\b|\bDEL\b|EVAL|FCALL|SUBSCRIBE",
    "redlock": rb"\bNX\b|EVAL|FCALL",
    "mysql": rb"(GET|RELEASE)_LOCK|INSERT|UPDATE",
    "postgresql": rb"advisory",
    # The length, number and type of a request: create, delete, a transaction or create2.
    "zookeeper": rb"(?s)^.{8}\x00\x00\x00[\x01\x02\x0e\x0f]",
}
"""By family: the request that takes or releases the lock."""
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
        worker = self.workers.get(process := actor + " far" * far)
        if worker is None or not worker.is_alive:
            log = self.root / f"{process}-{next(_serial)}.log"
            path = "loadtest.bench.survival.worker:Commands"
            worker = WorkerProcess(path, self._proxied() if far else {}, log=log)
            self.workers[process] = worker
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

    @property
    def server(self) -> Server:
        """Return the server of the lock's store that a fault hits."""
        family = self.library.family
        if family == "zookeeper":
            return leader(self.stores.zookeeper.nodes)
        return self.stores.servers["database" if family in ("mysql", "postgresql") else family]

    def hold(self, lease: float = LEASE, *, far: bool = False) -> WorkerProcess:
        """Let A acquire the lock; return its process."""
        holder = self.open("A", far=far, lease=lease)
        if not self.granted(holder, PATIENCE):
            raise FaultFailed("a free lock was not granted")
        return holder

    def hold_and_wait(
        self, lease: float = LEASE, *, far: bool = False
    ) -> tuple[WorkerProcess, WorkerProcess]:
        """Let A acquire the lock and B wait for it; return their processes."""
        waiter = self.open("B", lease=lease)
        holder = self.hold(lease, far=far)
        waiter.send("acquire", wait=PATIENCE)
        waiter.is_silent(QUEUED)
        return holder, waiter

    def granted(self, worker: WorkerProcess, wait: float | None = None) -> bool:
        """Return True if the worker, which waits already or asks now, was granted the lock.

        End one that ignores its time limit.
        """
        if wait is not None:
            worker.send("acquire", wait=wait)
        try:
            return bool(worker.receive(PATIENCE + LEASE).get("granted"))
        except FaultFailed:
            worker.close()
            return False

    def use(self, worker: WorkerProcess, wait: float | None = None) -> bool:
        """Let a worker that was `granted` the lock release it."""
        if is_granted := self.granted(worker, wait):
            worker.call("release")
        return is_granted

    def lose_reply(self, worker: WorkerProcess, what: str, **fields: Any) -> str:
        """Ask the worker to take or release the lock, and lose the store's reply."""
        before = sum(proxy.lost_replies for proxy in self.proxies)
        for proxy in self.proxies:
            proxy.losing = re.compile(CHANGES_LOCK[self.library.family])
        worker.send(what, **fields)
        worker.is_silent(PATIENCE + LEASE)
        for proxy in self.proxies:
            proxy.losing = None
        lost = sum(proxy.lost_replies for proxy in self.proxies) - before
        if not lost:
            raise FaultFailed("no reply to lose")
        return f"{lost} replies lost"


def _do(worker: WorkerProcess, what: str, **fields: Any) -> dict[str, Any]:
    reply = worker.call(what, **fields)
    if not reply["ok"]:
        raise FaultFailed(f"{what}: {reply['error']}: {reply['message']}")
    return reply


def killed(trial: Trial) -> str:
    """Kill the holder with SIGKILL while another waits."""
    holder, waiter = trial.hold_and_wait()
    trial.note("fault", "start", what="killed", target="A")
    holder.kill()
    trial.use(waiter)
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
        trial.use(third, 1.0)
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
    """Kill and start the store; a ZooKeeper fails over to another leader."""
    return _replaced(trial, "restarted", partial(Disturb([trial.server], "kill").last, 0.2))


def jumped(trial: Trial) -> str:
    """Set the clock of the store's machine forward by an hour."""
    is_zookeeper = trial.library.family == "zookeeper"
    servers = trial.stores.zookeeper.nodes if is_zookeeper else [trial.server]
    clocks = [_clock_of(server) for server in servers]

    def jump() -> str:
        ahead = _time_of(servers[0]) + JUMP / 2
        for clock in clocks:
            clock.shift(JUMP)
        until(lambda: _time_of(servers[0]) > ahead, "the jump")  # Valkey reads its clock later
        return f"the clock of process {servers[0].pid} went forward by {JUMP:g} s"

    try:
        return _replaced(trial, "jumped", jump)
    finally:
        for clock in clocks:
            clock.shift(0)


def _replaced(trial: Trial, what: str, inject: Callable[[], str]) -> str:
    """Inject a fault while the lock is held; another process then asks for it."""
    trial.open("B", warm=False)  # the process starts before the fault, its connection after
    holder = trial.hold(LONG_LEASE)
    trial.note("fault", "start", what=what)
    proof = inject()
    trial.note("fault", "end", what=what)
    other = trial.open("B", warm=False, lease=LONG_LEASE)
    _write_late(holder, other, trial.granted(other, 1.0))
    return proof


def _write_late(holder: WorkerProcess, other: WorkerProcess, is_replaced: bool) -> None:
    if is_replaced:
        other.call("write")
    for what in ("write", "notice", "release"):
        holder.call(what)
    if is_replaced:
        other.call("release")


def disconnected(trial: Trial) -> str:
    """Cut the holder off for longer than a ZooKeeper session, while another waits."""
    holder, waiter = trial.hold_and_wait(LONG_LEASE, far=True)
    trial.note("fault", "start", what="disconnected")
    holder.send("notice", within=CUT)
    proof = Disturb(trial.proxies, "cut").last(CUT)
    trial.note("fault", "end", what="disconnected")
    holder.receive()
    is_replaced = not waiter.is_silent(0.0) and trial.granted(waiter)
    _write_late(holder, waiter, is_replaced)
    if not is_replaced:
        trial.use(waiter)
    return proof


@cache
def _clock_of(server: Server) -> Clock:
    """Return the clock of a server, which starts again with it."""
    clock = Clock(server.folder)
    clock.drive(server)
    server.kill()
    server.start()
    return clock


def _time_of(server: Server) -> float:
    """Ask a server for its time, in seconds."""
    if isinstance(server, Redis):
        return float(server.ask("TIME").split()[2])
    if isinstance(server, ZooKeeperNode):
        client = KazooClient(server.url)
        client.start()
        _, made = client.create("/now", ephemeral=True, include_data=True)
        client.stop()
        return float(made.created)
    with connection.cursor() as cursor:
        cursor.execute("SELECT CURRENT_TIMESTAMP")
        now: datetime = cursor.fetchone()[0]
    connection.close()
    return now.timestamp()


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
    proof = trial.lose_reply(far, "acquire", wait=1.0)
    trial.use(far)
    trial.use(other, PATIENCE)
    return proof


def unreleased(trial: Trial) -> str:
    """Lose the reply to the request that releases the lock, while another waits; a third tries."""
    third = trial.open("C")
    holder, waiter = trial.hold_and_wait(LONG_LEASE, far=True)
    proof = trial.lose_reply(holder, "release")
    holder.receive()
    if trial.granted(waiter):
        trial.use(third, REPEATED)
        waiter.call("release")
    return proof


def uncommitted(trial: Trial) -> str:
    """Let A insert a row under the lock, and release the lock before its transaction commits."""
    waiter, holder = trial.open("B"), trial.open("A", warm=False)
    _do(holder, "begin", library=trial.name, lease=LONG_LEASE)
    if not trial.granted(holder, PATIENCE):
        raise FaultFailed("a free lock was not granted")
    for what in ("insert", "release"):
        _do(holder, what)
    waiter.send("acquire", wait=PATIENCE)
    if is_early := not waiter.is_silent(QUEUED) and trial.granted(waiter):
        _do(waiter, "read")
    _do(holder, "commit")
    if not is_early and trial.granted(waiter):
        _do(waiter, "read")
    waiter.call("release")
    return f"process {holder.pid} released the lock before its COMMIT"


def cancelled(trial: Trial) -> str:
    """Cancel tasks that acquire the lock; after each, another process asks for it."""
    if isinstance(why := trial.library.open_async, str):
        trial.note("does not apply", why=why)
        return why
    other, task = trial.open("B"), trial.open("T", warm=False, far=True)
    _do(task, "open_async", library=trial.name, lease=LEASE)
    for proxy in trial.proxies:
        proxy.delay = DELAY
    attempt = partial(_do, task, "attempt")
    took = median(attempt(limit=PATIENCE)["seconds"] for _ in range(9))
    holder = trial.hold()
    cancels = attempt(limit=QUEUED)["cancelled"]
    holder.call("release")
    for number in range(CANCELS):
        cancels += attempt(limit=took * number / CANCELS)["cancelled"]
        asked = time.monotonic()
        if not trial.use(other, PATIENCE) or time.monotonic() > asked + LEASE / 2:
            break
    for proxy in trial.proxies:
        proxy.delay = 0.0
    return f"{cancels} tasks cancelled" if cancels else ""
