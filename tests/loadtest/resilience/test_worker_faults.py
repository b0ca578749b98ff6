"""FAULTS rows 19 to 21: real workers and beats on a real Redis broker.

The control is the same task without `run_once`: on the same messages it doubles its effects.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from celery import Celery
from django.conf import settings
from django.db import OperationalError, connection
from django.utils import timezone
from redis import Redis as Client

from devservers import Redis, Server, start_all, stop_all
from devservers.base import injected_faults
from devservers.faults import waiting
from locking.jobs.runs import HEADER
from locking.models import JobRun
from tests.loadtest.resilience import EVERY

TIMEOUT = 45.0
until = partial(waiting.until, seconds=TIMEOUT)

pytestmark = pytest.mark.django_db(transaction=True)


class Machine(Server):
    """One worker with one child, or one beat; signals go to all of its processes."""

    def __init__(self, kind: str, sender: Celery) -> None:
        super().__init__()
        self.kind, self.sender = kind, sender

    @property
    def url(self) -> str:
        """Return the node name."""
        return f"{self.kind}-{self.port}@localhost"

    def command(self) -> list[str]:
        """Return the command line."""
        command = [sys.executable, "-m", "celery", "-q", "--workdir", str(settings.BASE_DIR)]
        command += ["-A", "tests.loadtest.resilience.jobs_app", self.kind, "-l", "INFO"]
        if self.kind == "worker":
            command += ["-c", "1", "-n", self.url]
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return command

    def is_ready(self) -> bool:
        """Return True once a worker responds; of a beat, a test waits for its messages."""
        node = [self.url]
        return self.kind == "beat" or bool(self.sender.control.ping(destination=node, timeout=0.5))

    def kill_child(self) -> None:
        """Kill the child that executes a worker's tasks."""
        (pid,) = self.children()
        os.kill(pid, signal.SIGKILL)
        injected_faults["Machine child killed"] += 1

    def _signal(self, how: signal.Signals) -> None:
        if self.is_running:
            # SIGTERM goes to the main process only: it ends its children itself.
            (os.kill if how == signal.SIGTERM else os.killpg)(self.pid, how)


class Broker:
    """A sender of messages for successive scheduled times; each run waits at its gate."""

    def __init__(self, url: str) -> None:
        self.redis = Client.from_url(url)
        self.app = Celery("sender", broker=url, set_as_current=False)
        self.gates, self.swept = 0, 0.0

    def send(self, task: str, **options: Any) -> tuple[str, str]:
        """Send a message; return the scheduled time and the gate of its run."""
        self.gates += 1
        gate, when = f"gate-{self.gates}", timezone.now().isoformat()
        self.app.send_task(task, kwargs={"gate": gate}, headers={HEADER: when}, **options)
        return when, gate

    def sweep(self) -> None:
        """Send the job that a beat sends once a second; more would keep the workers busy."""
        if time.monotonic() - self.swept >= EVERY:
            self.swept = time.monotonic()
            self.app.send_task("locking.jobs.tasks.resend_unfinished_runs")

    def started(self, gate: str) -> list[dict[str, Any]]:
        """Return the attempts that have started and wait at the gate."""
        attempts = [json.loads(line) for line in self.redis.lrange("started", 0, -1)]
        return [one for one in attempts if one["gate"] == gate]

    def wait_for_start(self, gate: str, times: int, *, sweep: bool = False) -> dict[str, Any]:
        """Wait for that many attempts to start; return the last one."""

        def has_started() -> bool:
            if sweep:
                self.sweep()
            return len(self.started(gate)) >= times

        until(has_started, f"start {times} at {gate}")
        return self.started(gate)[-1]

    def open(self, gate: str) -> None:
        """Let all attempts at the gate continue, also later ones."""
        self.redis.rpush(gate, "go")


@pytest.fixture(scope="module")
def cluster(
    test_database_url: str, django_db_blocker: Any
) -> Iterator[tuple[Broker, list[Machine]]]:
    """Two workers; the broker redelivers a message that is not acknowledged within a second."""
    with pytest.MonkeyPatch.context() as patch, Redis() as redis, django_db_blocker.unblock():
        patch.setenv("DATABASE_URL", test_database_url)
        patch.setenv("REDIS_URL", redis.url)
        patch.setenv("CELERY_BROKER_URL", redis.url)
        broker = Broker(redis.url)
        workers = [Machine("worker", broker.app), Machine("worker", broker.app)]
        with connection.cursor() as cursor:
            columns = "task VARCHAR(20) NOT NULL, scheduled_for VARCHAR(40) NOT NULL"
            cursor.execute(f"CREATE TABLE job_effect ({columns})")
        try:
            start_all(workers)
            yield broker, workers
        finally:
            stop_all(workers)
            with connection.cursor() as cursor:
                cursor.execute("DROP TABLE job_effect")


def effects(task: str) -> Counter[str]:
    """Return the number of effects by scheduled time of a task."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT scheduled_for FROM job_effect WHERE task = %s", [task])
        return Counter(when for (when,) in cursor.fetchall())


def run_at(when: str) -> JobRun:
    return JobRun.objects.get(task="once", scheduled_for=datetime.fromisoformat(when))


def until_done(when: str) -> JobRun:
    until(lambda: run_at(when).state == JobRun.State.DONE, "its end")
    return run_at(when)


def at_work(workers: list[Machine], pid: int) -> tuple[Machine, Machine]:
    """Return the worker that has this child process, and the other one."""
    first, second = workers
    return (first, second) if pid in first.children() else (second, first)


@pytest.mark.faults(row=19, backend="run_once", fired="message delivered twice")
def test_row_19_redelivered_message_runs_once(cluster) -> None:
    broker, _ = cluster
    when, gate = broker.send("once")
    until(lambda: broker.started(gate) and run_at(when).duplicates, "a redelivery")
    broker.open(gate)
    assert until_done(when).attempts == 1
    assert effects("once")[when] == 1
    # The control, with the same fault.
    when, gate = broker.send("control")
    broker.wait_for_start(gate, 2)
    broker.open(gate)
    until(lambda: effects("control")[when] >= 2, "the control to double")


@pytest.mark.faults(row=19, backend="run_once", fired="message delivered twice")
def test_row_19_countdown_beyond_visibility_timeout(cluster) -> None:
    broker, _ = cluster
    when, gate = broker.send("once", countdown=3)
    control, its_gate = broker.send("control", countdown=3)
    broker.open(gate)
    broker.open(its_gate)
    until(lambda: effects("control")[control] >= 2, "the control to double")
    until(lambda: effects("once")[when] and run_at(when).duplicates, "a redelivery")
    assert until_done(when).attempts == 1
    assert effects("once")[when] == 1


@pytest.mark.faults(row=20, backend="run_once")
@pytest.mark.parametrize("kill", [Machine.kill_child, Machine.kill], ids=["child", "worker"])
def test_row_20_killed_process_is_replaced(cluster, kill) -> None:
    broker, workers = cluster
    when, gate = broker.send("once")
    killed, other = at_work(workers, broker.wait_for_start(gate, 1)["pid"])
    kill(killed)
    second = broker.wait_for_start(gate, 2, sweep=True)
    assert second["attempt"] == 2
    assert killed.is_running or second["pid"] in other.children()
    broker.open(gate)
    assert until_done(when).attempts == 2
    assert effects("once")[when] == 1
    killed.start()


@pytest.mark.faults(row=20, backend="run_once", xf=True)
def test_row_20_worker_paused_past_its_lease_finishes_nothing(cluster) -> None:
    """XF: two machines execute the run; only the attempt in the row tells them apart."""
    broker, workers = cluster
    when, gate = broker.send("once")
    stopped, _ = at_work(workers, broker.wait_for_start(gate, 1)["pid"])
    stopped.pause()
    assert broker.wait_for_start(gate, 2, sweep=True)["attempt"] == 2
    broker.open(gate)
    assert until_done(when).attempts == 2
    stopped.resume()
    until(lambda: "attempt 1 was taken over" in stopped.log.read_text(), "the late worker's end")
    assert effects("once")[when] == 1


def pause_between_writes(beat: Machine) -> bool:
    """Pause a beat unless it is writing: it would hold the only lock of SQLite."""
    beat.pause()
    try:
        JobRun.objects.filter(pk=0).update(task="")
    except OperationalError:
        beat.resume()
        return False
    return True


@pytest.mark.faults(row=21, backend="run_once")
def test_row_21_one_of_two_beats_paused_past_its_lease(cluster) -> None:
    broker, _ = cluster
    beats, began = [Machine("beat", broker.app), Machine("beat", broker.app)], timezone.now()

    def is_sent_twice() -> bool:
        return any(n >= 2 for when, n in effects("control").items() if when > began.isoformat())

    try:
        start_all(beats)
        until(is_sent_twice, "two beats' ticks")
        until(lambda: pause_between_writes(beats[1]), "a stop outside of a write")
        since = timezone.now() + timedelta(seconds=EVERY)

        def missed() -> list[str]:
            return [when for when in effects("control") if when > since.isoformat()]

        until(lambda: len(missed()) >= 4, "the other beat alone")
        alone = [when for when in missed() if effects("control")[when] == 1]
        assert alone
        beats[1].resume()
        # The control's effect may be there before the row of the run: they are two messages.
        late = JobRun.objects.filter(
            task="once",
            scheduled_for__in=[datetime.fromisoformat(when) for when in alone],
            duplicates__gt=0,
        )
        until(late.exists, "the late ticks")
        last = timezone.now() - timedelta(seconds=2 * EVERY)  # both messages were sent
    finally:
        stop_all(beats)

    def times(task: str) -> dict[datetime, int]:
        had = {datetime.fromisoformat(when): n for when, n in effects(task).items()}
        return {when: n for when, n in had.items() if began <= when <= last}

    def settled() -> bool:
        broker.sweep()
        runs = JobRun.objects.filter(task="once", scheduled_for__range=(began, last))
        is_done = not runs.exclude(state=JobRun.State.DONE).exists()
        return is_done and times("control").keys() <= times("once").keys()

    until(settled, "a run for each time of the control")
    assert set(times("once").values()) == {1}


REFUSALS = {
    "full": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "replica": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_worker_outlives_a_broker_that_refuses_writes(cluster, refusal) -> None:
    """It tries again until the broker accepts them, and then works."""
    broker, workers = cluster
    fault, remedy = REFUSALS[refusal]
    start_all(workers)
    pids = [worker.pid for worker in workers]
    ends = [worker.log.stat().st_size for worker in workers]

    def retries() -> int:
        logs = (one.log.read_bytes()[end:] for one, end in zip(workers, ends, strict=True))
        return max(log.count(b"Trying to re") for log in logs)

    for worker in workers:
        worker.pause()
    broker.send("once")  # which a worker takes, and cannot note as unacknowledged: it is lost
    broker.redis.execute_command(*fault.split())
    for worker in workers:
        worker.resume()
    try:
        until(lambda: retries() >= 2 or not all(one.is_running for one in workers), "a retry")
    finally:
        broker.redis.execute_command(*remedy.split())
    when, gate = broker.send("once")
    broker.wait_for_start(gate, 1)
    broker.open(gate)
    until_done(when)
    assert [worker.pid for worker in workers if worker.is_running] == pids
