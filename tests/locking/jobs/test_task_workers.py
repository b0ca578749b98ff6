"""`run_once` on Django's Tasks, with workers that are killed and stopped.

On every task backend that is installed; django-tasks-db always is.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from redis import Redis

from devservers import MariaDb, Server, start_all, stop_all
from tests.locking.backends.database.database_tools import Root
from tests.locking.jobs.tasks_settings import INSTALLED

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 90.0
WORKERS = {
    "django_tasks_db": ("django", "db_worker", "--interval=0.1", "--no-startup-delay"),
    "django_ox": ("django", "ox_worker", "--interval=0.1"),
    "django_tasks_celery": (
        *("celery", "-A", "tests.locking.jobs.tasks_project:app", "worker"),
        *("-P", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"),
    ),
}


class Worker(Server):
    """A worker of a task backend, which executes one task at a time."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    @property
    def url(self) -> str:
        return f"{self.backend}-{self.port}@localhost"

    def command(self) -> list[str]:
        named = ["-n", self.url] if self.backend == "django_tasks_celery" else []
        return [sys.executable, "-m", *WORKERS[self.backend], *named]

    def is_ready(self) -> bool:
        return True  # a test waits for what it executes


class Site:
    """The database and three workers of a project on one task backend."""

    def __init__(self, backend: str, database: str, mariadb: MariaDb, redis: Redis) -> None:
        self.database, self.redis, self.root = database, redis, Root(mariadb)
        self.workers = [Worker(backend) for _ in range(3)]

    def do(self, call: str) -> subprocess.Popen[bytes]:
        """Let another process of the project make a call."""
        code = f"from tests.locking.jobs import tasks_project; tasks_project.{call}"
        return subprocess.Popen([sys.executable, "-c", code])

    def effects(self, name: str) -> list[tuple[int, int]]:
        """Return the numbers of the tasks that had an effect, with their attempts."""
        sql = f"SELECT number, attempt FROM {self.database}.effect WHERE name = '{name}'"  # noqa: S608
        return list(self.root(sql))

    def started(self) -> dict[str, Any] | None:
        """Return the next task that waits at a gate, and its worker."""
        entry = self.redis.blpop(["started"], timeout=0.1)
        if not entry:
            return None
        found: dict[str, Any] = json.loads(entry[1])
        (worker,) = (one for one in self.workers if one.pid == found["pid"])
        return {**found, "worker": worker}


@pytest.fixture(params=INSTALLED or ["django_tasks_db"])
def site(request: Any, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    name = f"tasks_{time.time_ns()}"
    table = f"CREATE TABLE {name}.effect (name VARCHAR(9), number INTEGER, attempt INTEGER)"
    mariadb.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4", table)
    added = {
        "DATABASE_URL": f"{mariadb.url.rpartition('/')[0]}/{name}",
        "DJANGO_SETTINGS_MODULE": "tests.locking.jobs.tasks_settings",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TASKS_BACKEND": request.param,
        "TASKS_QUEUE": name,
    }
    for variable, value in added.items():
        monkeypatch.setenv(variable, value)
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity=0", "--skip-checks"]
    subprocess.run(migrate, check=True, timeout=120)
    with Redis.from_url(settings.REDIS_URL) as redis:
        redis.delete("started")
        made = Site(request.param, name, mariadb, redis)
        resending = made.do("resend()")
        try:
            yield made
        finally:
            stop_all(made.workers)
            resending.kill()
            resending.wait()
            mariadb.execute(f"DROP DATABASE {name}")


@pytest.mark.long
@pytest.mark.parametrize(("number", "every"), [(40, 10), (1000, 25)])
def test_one_effect_per_scheduled_time(site: Site, number: int, every: int) -> None:
    """Two senders enqueue every run; each gate is a run whose worker is killed or stopped."""
    first = int(time.time()) - 10_000
    senders = [site.do(f"send({number}, {every}, {first})") for _ in range(2)]
    start_all(site.workers)
    faults: Counter[str] = Counter()
    stopped: dict[str, Any] | None = None
    assert [sender.wait() for sender in senders] == [0, 0]
    deadline = time.monotonic() + TIMEOUT + number / 2
    while len(done := dict(site.effects("once"))) < number or stopped:
        assert time.monotonic() < deadline, (number - len(done), faults)
        if stopped and int(stopped["gate"].partition("-")[2]) in done:
            stopped["worker"].resume()  # another attempt has taken over
            site.redis.rpush(stopped["gate"], "go")
            stopped = None
        if found := site.started():
            if faults["killed"] <= faults["stopped"] or stopped:
                faults["killed"] += 1
                found["worker"].kill()
                found["worker"].start()
            else:
                faults["stopped"] += 1
                stopped = found
                found["worker"].pause()
    assert faults.total() == number / every
    assert len(faults) == 2, faults
    for worker in site.workers:
        worker.terminate()
    effects = site.effects("once")
    assert Counter(one for one, _ in effects) == dict.fromkeys(range(number), 1)
    later = {one for one, attempt in effects if attempt > 1}
    assert later >= set(range(0, number, every)), "a fault came too late"
    control = Counter(one for one, _ in site.effects("control"))
    assert control == dict.fromkeys(range(5), 2), "the control: each message had an effect"
