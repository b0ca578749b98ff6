"""The locks, sale, processes and faults of one variant of a scenario, and the record of it all.

`use` or `add_lock` comes before `worker`: a worker process gets the locks that exist then. All
events so far are in `history(testbed.folder)`.
"""

import shutil
import time
from contextlib import ExitStack
from typing import Any

import environ
from django.conf import settings

from devservers import Redis, start_all, stop_all
from devservers.faults.injectors import Fault
from devservers.faults.waiting import FaultFailed
from devservers.temporary import temporary_directory
from loadtest.kernel.history import Event, Recorder, history
from loadtest.kernel.judges import Run, facts
from loadtest.kernel.topology import Stores
from loadtest.load.sale import open_sale
from loadtest.load.shop_worker import ShopWorker, add_database
from locking import locks, policy
from locking.models import LockPolicy
from shop.models import Sale, User

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
BACKENDS = "locking.backends"
REDIS = f"{BACKENDS}.redis.RedisBackend"
DATABASE = f"{BACKENDS}.database.DatabaseBackend"
REDLOCK = f"{BACKENDS}.redlock.RedLockBackend"
ZOOKEEPER = f"{BACKENDS}.zookeeper.ZooKeeperBackend"


class Testbed:
    """The folder, locks and processes of one variant of a scenario; `stores` are its servers."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._stack = ExitStack()
        self.folder = temporary_directory("scene")
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.recorder = Recorder(self.folder, "lab")
        self._stack.callback(self.recorder.close)
        self.note = self.recorder.note
        self.began = time.monotonic()
        self.hides_stock = False
        """The timeline leaves out the stock row and its lock."""
        self._locks: dict[str, dict[str, Any]] = {}
        self._databases: dict[str, Any] = {}
        self._workers: list[ShopWorker] = []

    def close(self) -> None:
        """Close the locks, return the idle processes and stop the servers of this variant."""
        locks.close()
        for process in self._workers:
            if process.is_alive and not process.is_busy:
                self.stores.idle.append(process)
            else:
                process.close()
        self._stack.close()

    def start(self, server: Any) -> Any:
        """Start a server that this variant may damage."""
        return self._stack.enter_context(server)

    # --- locks and shop ---

    def use(self, strategy: str, alias: str = "redis", backend: str = REDIS, **conf: Any) -> None:
        """Guard the sale with this lock and write strategy; by default with the shared Redis."""
        self.add_lock(alias, backend, **conf)
        row = {"backend": alias, "mode": strategy, "state": LockPolicy.State.STEADY}
        # Without a drain: no purchase is running yet.
        LockPolicy.objects.update_or_create(pk=1, defaults={**row, "epoch": 1})
        policy.invalidate()

    def add_lock(self, alias: str = "redis", backend: str = REDIS, **conf: Any) -> None:
        """Add an entry to LOCKS, here and in the worker processes that start afterwards."""
        if "LOCATION" not in conf:
            conf["LOCATION"] = self.stores.redis.url
        settings.LOCKS[alias] = self._locks[alias] = {"BACKEND": backend, "TTL": TTL, **conf}

    def masters(self) -> list[Redis]:
        """Return five masters that have not started yet."""
        masters = [Redis() for _ in range(5)]
        self._stack.callback(stop_all, masters)
        return masters

    def use_redlock(self, masters: list[Redis], strategy: str = "naive", **conf: Any) -> None:
        """Start the masters, and guard the sale with them."""
        start_all(masters)
        urls = [master.url for master in masters]
        self.use(strategy, "redlock", REDLOCK, LOCATION=urls, **conf)

    def add_database(self) -> str:
        """Add MariaDB to DATABASES beside the shop's; return its alias."""
        self._databases["beside"] = environ.Env.db_url_config(self.stores.mariadb.url)
        add_database("beside", self._databases["beside"])
        return "beside"

    def open_sale(self, stock: int = 1, **options: Any) -> Sale:
        """Create a sale that is open now."""
        return open_sale(f"scene-{time.monotonic_ns()}", stock, **options)

    def create_customer(self) -> int:
        """Create a customer; return the primary key."""
        return User.objects.create(username=f"scene-{time.monotonic_ns()}").pk

    # --- processes and faults ---

    def worker(self, name: str, *, timeout: float = 2.0) -> ShopWorker:
        """Return a worker process whose purchases wait `timeout` seconds for the lock."""
        process = self.stores.idle.pop() if self.stores.idle else ShopWorker()
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
        if "sold" in own:
            self.note("count", sold=own["sold"], stock=own["stock"])
        events = [e for e in history(self.folder) if not (self.hides_stock and _of_stock(e))]
        found = facts(Run(events))
        names = ("overlaps", "overlap_seconds", "lease_overlaps")
        own = {name: found[name] for name in names} | own
        seconds = round(time.monotonic() - self.began, 2)
        return {"facts": own, "events": events, "seconds": seconds}


def _of_stock(event: Event) -> bool:
    return event["do"] in ("read", "write") or str(event.get("name", "")).startswith("sale:")
