"""The private servers, locks, sale and processes of a scenario, and the record of its events."""

import shutil
import time
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import environ
from django.conf import settings
from django.db import connections

from devservers import MariaDb, Redis, ZooKeeper, start_all, stop_all
from devservers.faults.injectors import Fault
from devservers.faults.waiting import FaultFailed
from devservers.temporary import temporary_directory
from loadtest.kernel.history import Recorder, history
from loadtest.kernel.judges import Run, facts
from loadtest.load.sale import open_sale
from loadtest.load.shop_worker import ShopWorker, add_database
from locking import locks, policy
from locking.models import LockPolicy, LockRow
from shop.models import Sale, User

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
BACKENDS = "locking.backends"
REDIS = f"{BACKENDS}.redis.RedisBackend"
DATABASE = f"{BACKENDS}.database.DatabaseBackend"
REDLOCK = f"{BACKENDS}.redlock.RedLockBackend"
ZOOKEEPER = f"{BACKENDS}.zookeeper.ZooKeeperBackend"


class SharedResources:
    """Servers and worker processes that one scenario leaves for the next, until `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.idle: list[ShopWorker] = []

    def close(self) -> None:
        """Stop every server and process."""
        for process in self.idle:
            process.kill()
        self._stack.close()

    @cached_property
    def redis(self) -> Redis:
        """A Redis for the scenarios that do not disturb it."""
        return self._stack.enter_context(Redis())

    @cached_property
    def zookeeper(self) -> ZooKeeper:
        """One node: enough where no server fails."""
        return self._stack.enter_context(ZooKeeper(nodes=1))

    @cached_property
    def mariadb(self) -> MariaDb:
        """A MariaDB beside the shop's own database."""
        return self._stack.enter_context(MariaDb())


class Testbed:
    """The folder, locks and processes of one variant of a scenario."""

    def __init__(self, shared: SharedResources) -> None:
        self.shared = shared
        self._stack = ExitStack()
        self.folder = temporary_directory("scene")
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.recorder = Recorder(self.folder, "lab")
        self._stack.callback(self.recorder.close)
        self.note = self.recorder.note
        self.began = time.monotonic()
        self._locks: dict[str, dict[str, Any]] = {}
        self._databases: dict[str, Any] = {}
        self._workers: list[ShopWorker] = []

    def close(self) -> None:
        """Close the locks, return the idle processes and stop the servers of this variant."""
        locks.close()
        for process in self._workers:
            if process.is_alive and not process.is_busy:
                self.shared.idle.append(process)
            else:
                process.kill()
        self._stack.close()

    def start(self, server: Any) -> Any:
        """Start a server that this variant may damage."""
        return self._stack.enter_context(server)

    # --- locks and shop ---

    def add_lock(self, alias: str, backend: str, location: object, **conf: Any) -> None:
        """Add an entry to LOCKS, here and in the worker processes that start afterwards."""
        entry = {"BACKEND": backend, "LOCATION": location, "TTL": TTL, **conf}
        settings.LOCKS[alias] = self._locks[alias] = entry

    def add_redis_lock(self, url: str = "", **conf: Any) -> None:
        """Add the entry `redis`."""
        self.add_lock("redis", REDIS, url or self.shared.redis.url, **conf)

    def add_redlock(self, masters: list[Redis], **conf: Any) -> None:
        """Start the masters and add the entry `redlock`."""
        start_all(masters)
        self._stack.callback(stop_all, masters)
        self.add_lock("redlock", REDLOCK, [master.url for master in masters], **conf)

    def add_database(self, server: MariaDb) -> str:
        """Add an entry to DATABASES that has the lock table; return its alias."""
        entry = environ.Env.db_url_config(server.url)
        self._databases["beside"] = entry
        if add_database("beside", entry):
            with connections["beside"].schema_editor() as editor:
                editor.create_model(LockRow)
        return "beside"

    def activate(self, backend: str, strategy: str) -> None:
        """Set the policy without a drain: no purchase is running yet."""
        row = {"backend": backend, "mode": strategy, "state": LockPolicy.State.STEADY}
        LockPolicy.objects.update_or_create(pk=1, defaults={**row, "epoch": 1})
        policy.invalidate()

    def open_sale(self, stock: int = 1) -> Sale:
        """Create a sale that is open now."""
        return open_sale(f"scene-{time.monotonic_ns()}", stock)

    def create_customer(self) -> int:
        """Create a customer; return the primary key."""
        return User.objects.create(username=f"scene-{time.monotonic_ns()}").pk

    # --- processes and faults ---

    def worker(self, name: str, *, timeout: float = 2.0) -> ShopWorker:
        """Return a worker process whose purchases wait `timeout` seconds for the lock."""
        process = self.shared.idle.pop() if self.shared.idle else ShopWorker()
        self._workers.append(process)
        process.open(self.folder, name, self._locks, timeout, self._databases)
        return process

    def inject(self, fault: Fault) -> None:
        """Inject a fault; raise FaultFailed if it had no effect."""
        self.note("fault", "start", what=fault.what, lane=fault.lane)
        fault.inject()
        if not fault.injected:
            raise FaultFailed(f"{fault.lane} {fault.what}: it did not fire")

    def recover(self, fault: Fault) -> None:
        """End a fault."""
        fault.recover()
        self.note("fault", "end", what=fault.what, lane=fault.lane)

    def kill(self, process: ShopWorker, name: str) -> None:
        """Send SIGKILL to a worker process, as a crash would end it."""
        self.note("fault", "start", what="killed", lane=name, target=name)
        process.kill()

    def mark_deleted(self, process: str, *, by: str) -> None:
        """Record that the last release of a process removed another's lock from the store."""
        ends = (e["t"] for e in history(self.folder) if (e["do"], e["actor"]) == ("release", by))
        self.note("deleted", lane=by, holder=process, t=max(ends))

    def finish(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return events, seconds and facts: its own, and the overlaps of its holders."""
        events = history(self.folder)
        found = facts(Run(events))
        names = ("overlaps", "overlap_seconds", "lease_overlaps")
        own = {name: found[name] for name in names} | own
        seconds = round(time.monotonic() - self.began, 2)
        return {"facts": own, "events": events, "seconds": seconds}
