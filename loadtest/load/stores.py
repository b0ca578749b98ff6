"""Private stores of an experiment, and the process that runs it with their addresses."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from devservers import MariaDb, PostgreSql, Redis, Server, ServerError, ZooKeeper
from devservers.base import STOP_TIMEOUT, start_all, stop_all
from devservers.faults.injectors import CutReplication
from devservers.process import with_parent_death_signal
from devservers.temporary import temporary_directory
from loadtest.load.fault_plan import FAULTS, OUTAGE_SECONDS
from loadtest.load.plan import BACKENDS

NOWHERE = "unix:///nonexistent"


class ExperimentFailed(RuntimeError):
    """An experiment ended with an unexpected error; the message ends with its log."""


def private_environ(folder: Path) -> dict[str, str]:
    """Return the environment of an experiment with its files in `folder`, and without servers."""
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop.settings.lab",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SHOP_VAR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder / 'lab.sqlite3'}",
        "REDIS_URL": NOWHERE,
        "QUEUE_REDIS_URL": "",
        "LOCK_REDIS_URL": "",
        "CACHE_URL": "",  # the server of REDIS_URL
        "CELERY_BROKER_URL": NOWHERE,
        "REDLOCK_URLS": "",
        "ZOOKEEPER_HOSTS": "",
        "DEBUG": "0",
        "MAX_WAITING": "100",  # the buyers shall wait for the lock, not be refused before
        "PURCHASES_PER_GRANT": "1",  # and each buyer takes the lock itself
        "LOG_LEVEL": "WARNING",
    }
    # The metrics of a shop that started this process must not count an experiment.
    environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    return environ


class PrivateStores:
    """An empty database and the servers that the backends need, stopped when the block ends.

    `missing` maps a backend, or "database", to the reason why its store is not available.
    """

    def __init__(
        self,
        store: str,
        backends: Iterable[str],
        *,
        ensemble: ZooKeeper | None = None,
        redis_config: Sequence[str] = (),
    ) -> None:
        self.store = store
        self._redis_config = redis_config
        self._ensemble = ensemble
        self.backends = tuple(backends)
        self.missing: dict[str, str] = {}
        self.servers: dict[str, Server] = {}
        """The server of each kind that a fault may kill."""
        self._coming_back: dict[str, threading.Timer] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self.folder = temporary_directory("lab")
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.environ = private_environ(self.folder)
            if self.store != "sqlite":
                self._start("database")
            for backend in self.backends:
                if BACKENDS[backend]:
                    self._start(backend)
            self._injector = self._stack.enter_context(ThreadPoolExecutor(1))
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
        if self.store == "postgresql":
            server = PostgreSql(config=["--shared_preload_libraries=pg_stat_statements"])
            return {"DATABASE_URL": self._up("database", server).url}
        return {"DATABASE_URL": self._up("database", MariaDb()).url}

    def _redis(self) -> dict[str, str]:
        server = Redis(prefer="embedded", config=self._redis_config)
        return {"REDIS_URL": self._up("redis", server).url}

    def _redlock(self) -> dict[str, str]:
        masters = [Redis(prefer="embedded") for _ in range(5)]
        start_all(masters)
        self._stack.callback(stop_all, masters)
        self.servers["redlock"] = masters[0]
        return {"REDLOCK_URLS": ",".join(master.url for master in masters)}

    def _zookeeper(self) -> dict[str, str]:
        zookeeper = self._stack.enter_context(self._ensemble or ZooKeeper(nodes=1))
        self.servers["zookeeper"] = zookeeper.nodes[0]
        return {"ZOOKEEPER_HOSTS": zookeeper.hosts}

    def _up(self, what: str, server: Server) -> Server:
        self.servers[what] = self._stack.enter_context(server)
        return server

    @property
    def ports(self) -> dict[str, int]:
        """Return the ports of the servers that a fault may kill."""
        return {what: server.port for what, server in self.servers.items()}

    def kill(self, what: str, *, back_after: float) -> bool:
        """Kill a server and start it `back_after` seconds later; return False if it is down."""
        if what in self._coming_back:
            self._coming_back[what].join()
        if (server := self.servers.get(what)) is None or not server.is_running:
            return False
        server.kill()
        back = threading.Timer(back_after, server.start)
        back.start()
        self._coming_back[what] = back
        # The timer ends before its server is stopped for good.
        self._stack.callback(back.join)
        return True

    def inject(self, name: str) -> None:
        """Inject a fault of a server in the background, and send its proof to the experiment."""
        self._injector.submit(self._inject, name)

    def _inject(self, name: str) -> None:
        proof = ""
        try:
            proof = self._fail_over() if name == "cut-replication" else self._restart(name)
        finally:
            self.send({"proof": proof})

    def _restart(self, name: str) -> str:
        what = FAULTS[name].server or ""
        pid = self.servers[what].pid
        if not self.kill(what, back_after=OUTAGE_SECONDS):
            return ""
        self._coming_back[what].join()
        return f"{what}, process {pid}, ended by SIGKILL"

    def _fail_over(self) -> str:
        """Cut a replica off; after OUTAGE_SECONDS it replaces the master, on the same port."""
        master = self.servers["redis"]
        assert isinstance(master, Redis)
        replica = Redis(prefer="embedded", replica_of=master)
        cut = CutReplication(self._stack.enter_context(replica))
        cut.inject()
        time.sleep(OUTAGE_SECONDS)
        cut.replace(master)
        self.servers["redis"] = replica
        return f"replica cut off from process {master.pid}, promoted after its SIGKILL"

    def send(self, message: dict[str, str]) -> None:
        """Send a line to the experiment, unless it has ended."""
        with contextlib.suppress(OSError, ValueError):
            print(json.dumps(message), file=self._requests, flush=True)

    def run_experiment(self, experiment: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Run `python -m loadtest EXPERIMENT` with these stores and yield its events."""
        log = self.folder / "log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                with_parent_death_signal([sys.executable, "-m", "loadtest", experiment]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environ,
                cwd=self.folder,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
            ) as process,
            _ended(process),
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            self._requests = process.stdin
            self.send(asked)
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "end":
                    return
                yield event
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise ExperimentFailed(f"{experiment} failed:\n{tail}")


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    """End the process when the block ends."""
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
        process.kill()
