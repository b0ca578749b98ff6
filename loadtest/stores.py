"""The private stores of one load test, and the environment that leads a process to them."""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Self

from loadtest.plan import BACKENDS, Plan
from loadtest.servers import MariaDb, Redis, ServerError, ZooKeeper, start_all, stop_all

NOWHERE = "unix:///nonexistent"


class Stores:
    """A fresh database and the servers that the plan's backends need, all gone at the end.

    `missing` maps a backend, or "database", to the reason why its store could not be had.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.missing: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self.folder = Path(tempfile.mkdtemp(prefix="seckill-lab-"))
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.environ = {
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "shop.settings",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "SHOP_VAR": str(self.folder),
                "DATABASE_URL": f"sqlite:///{self.folder / 'lab.sqlite3'}",
                "REDIS_URL": NOWHERE,
                "CELERY_BROKER_URL": NOWHERE,
                "REDLOCK_URLS": "",
                "ZOOKEEPER_HOSTS": "",
                "DEBUG": "0",
                "LOG_LEVEL": "WARNING",
            }
            if self.plan.store == "mariadb":
                self._start("database")
            for backend in self.plan.backends:
                if BACKENDS[backend]:
                    self._start(backend)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _start(self, what: str) -> None:
        try:
            self.environ.update(getattr(self, f"_{what}")())
        except ServerError as error:
            self.missing[what] = str(error)

    def _database(self) -> dict[str, str]:
        return {"DATABASE_URL": self._stack.enter_context(MariaDb()).url}

    def _redis(self) -> dict[str, str]:
        return {"REDIS_URL": self._stack.enter_context(Redis(prefer="embedded")).url}

    def _redlock(self) -> dict[str, str]:
        masters = [Redis(prefer="embedded") for _ in range(5)]
        start_all(masters)
        self._stack.callback(stop_all, masters)
        return {"REDLOCK_URLS": ",".join(master.url for master in masters)}

    def _zookeeper(self) -> dict[str, str]:
        return {"ZOOKEEPER_HOSTS": self._stack.enter_context(ZooKeeper(nodes=1)).hosts}
