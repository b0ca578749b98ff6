"""`unique` with a real Celery worker: the key of a task while it is queued, runs and ends."""

import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.signals import before_task_publish
from django.conf import settings
from redis import Redis as Client

from devservers import Server
from devservers.faults.waiting import until
from locking import LockMisuse, locks
from locking.jobs.unique import HEADER, unique, unique_task
from tests.locking.jobs import unique_app
from tests.locking.jobs.unique_app import QUEUE, READY, app, fail, hard, soft, work

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 45.0


class Worker(Server):
    """A worker with two children."""

    @property
    def url(self) -> str:
        return f"unique-{self.port}@localhost"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "celery", "-q", "--workdir", str(ROOT)]
        command += ["-A", "tests.locking.jobs.unique_app", "worker", "-l", "INFO", "-c", "2"]
        command += ["-n", self.url, "--prefetch-multiplier", "1"]
        return [*command, "--without-gossip", "--without-mingle", "--without-heartbeat"]

    def is_ready(self) -> bool:
        return READY in self.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def worker(redis_server: Any) -> Iterator[Worker]:
    worker = Worker()
    try:
        worker.start()
        yield worker
    finally:
        worker.stop()


@pytest.fixture
def redis() -> Iterator[Client]:
    with Client.from_url(settings.REDIS_URL) as client:
        yield client


class Job:
    """One key, and the gate at which its tasks wait."""

    def __init__(self, task: Any, redis: Client) -> None:
        self.task, self.redis = task, redis
        self.key = self.gate = uuid.uuid4().hex

    def send(self, **options: Any) -> str:
        return str(unique(self.task, self.key, [self.gate], **options).id)

    def starts(self, gate: str = "") -> list[dict[str, Any]]:
        return list(map(json.loads, self.redis.lrange(f"started:{gate or self.gate}", 0, -1)))

    def wait_for_start(self, gate: str = "") -> dict[str, Any]:
        until(lambda: self.starts(gate), "the start", seconds=TIMEOUT)
        return self.starts(gate)[-1]

    def open(self, gate: str = "") -> None:
        self.redis.rpush(gate or self.gate, "go")

    @property
    def is_free(self) -> bool:
        names = {held.name for held in locks["redis"].inspect()}
        return not any(name.endswith(self.key) for name in names)

    def wait_until_free(self) -> None:
        until(lambda: self.is_free, "the end of the key", seconds=TIMEOUT)


@pytest.fixture
def job(request: Any, redis: Client, worker: Worker) -> Job:
    return Job(getattr(request, "param", work), redis)


def test_second_send_while_it_runs_returns_the_first(job: Job) -> None:
    first = job.send()
    assert job.wait_for_start()["id"] == first
    assert [job.send() for _ in range(3)] == [first] * 3
    assert unique(job.task, f"{job.key}-other", ["open"]).id != first
    job.open("open")
    ttl = max(held.expires_in for held in locks["redis"].inspect() if held.name.endswith(job.key))
    assert ttl <= locks["redis"].ttl, "a crash would keep the key as long as a queued message"
    job.open()
    job.wait_until_free()
    assert len(job.starts()) == 1
    second = job.send()
    assert second != first
    assert job.wait_for_start()
    job.open()
    job.wait_until_free()


@pytest.mark.parametrize("job", [fail, soft, hard], indirect=True)
def test_failure_and_time_limit_free_the_key(job: Job) -> None:
    first = job.send()
    if job.task is fail:  # the others may have ended by now, even before their start
        job.wait_for_start()
        assert job.send() == first
        job.open()
    job.wait_until_free()
    assert len(job.starts()) <= 1


@pytest.mark.parametrize("job", [unique_app.again, unique_app.automatic], indirect=True)
def test_retry_keeps_the_key(job: Job, worker: Worker) -> None:
    first = job.send()
    job.wait_for_start()
    job.open()
    inspect = app.control.inspect(destination=[worker.url], timeout=TIMEOUT)
    again = f"{job.gate}-again"
    until(
        lambda: any(inspect.scheduled().values()) or job.starts(again), "the retry", seconds=TIMEOUT
    )
    assert job.send() == first
    assert job.wait_for_start(again)["id"] == first
    assert job.send() == first
    job.open(again)
    job.wait_until_free()


@pytest.mark.parametrize("job", [unique_app.hurried], indirect=True)
def test_retry_that_arrives_before_the_key_is_handed_over_runs(job: Job) -> None:
    first, sent, again = job.send(), f"{job.gate}-sent", f"{job.gate}-again"
    job.wait_for_start()
    job.open()
    job.wait_for_start(sent)
    (name,) = [one.name for one in locks["redis"].inspect() if one.name.endswith(job.key)]
    until(lambda: locks["redis"].backend.holders(name)[0].waiters, "its wait", seconds=TIMEOUT)
    job.open(sent)
    assert job.wait_for_start(again)["id"] == first
    job.open(again)
    job.wait_until_free()


@pytest.fixture
def deliver_again(job: Job) -> Iterator[Callable[[], None]]:
    """Deliver the job's first message once more, as a broker does without an acknowledgment."""
    sent: list[dict[str, Any]] = []

    def record(headers: dict[str, Any], **message: Any) -> None:
        sent.append({"task_id": headers["id"], "headers": {HEADER: headers[HEADER]}})

    before_task_publish.connect(record)
    yield lambda: job.task.apply_async([job.gate], **sent[0])
    before_task_publish.disconnect(record)


def test_message_delivered_again_does_not_run_beside_the_first(job, worker, deliver_again) -> None:
    first = job.send()
    job.wait_for_start()
    deliver_again()
    until(lambda: f"{first}] not run" in worker.log.read_text(), "its end", seconds=TIMEOUT)
    assert len(job.starts()) == 1
    assert job.send() == first, "it took the key away"
    job.open()
    job.wait_until_free()


def test_message_delivered_again_runs_when_its_first_worker_has_died(job, deliver_again) -> None:
    job.send()
    os.kill(job.wait_for_start()["pid"], signal.SIGKILL)
    deliver_again()
    until(lambda: len(job.starts()) == 2, "the second start", seconds=TIMEOUT)
    assert not job.is_free
    job.open()
    job.wait_until_free()


def test_message_that_was_queued_for_too_long_makes_way_for_another(job, worker, redis) -> None:
    queue, late = f"{QUEUE}-{job.key}", Job(work, redis)
    late.key = job.key
    first = late.send(queue=queue, queued_for=0.1)
    job.wait_until_free()
    job.send()
    job.wait_for_start()
    app.control.add_consumer(queue, destination=[worker.url], reply=True, limit=1)
    until(lambda: f"{first}] not run" in worker.log.read_text(), "its end", seconds=TIMEOUT)
    job.open()
    job.wait_until_free()
    assert not late.starts()


def test_revocation_of_a_queued_message_frees_the_key(job: Job, worker: Worker) -> None:
    queue = f"{QUEUE}-{job.key}"
    first = job.send(queue=queue)
    assert job.send(queue=queue) == first
    assert job.redis.llen(queue) == 1
    assert app.control.revoke(first, reply=True, timeout=TIMEOUT, limit=1)
    assert job.send(queue=queue) == first, "the message is still queued"
    app.control.add_consumer(queue, destination=[worker.url], reply=True, limit=1)
    job.wait_until_free()
    assert not job.starts()


def test_message_that_is_lost_counts_until_its_time_is_over(job: Job) -> None:
    first = job.send(queue="nowhere", queued_for=5.0)
    job.redis.delete("nowhere")
    assert job.send(queue="nowhere") == first
    job.wait_until_free()


def test_message_that_could_not_be_sent_frees_the_key(job: Job, monkeypatch) -> None:
    monkeypatch.setattr(job.task, "apply_async", Mock(side_effect=OSError("no broker")))
    with pytest.raises(OSError, match="no broker"):
        job.send()
    assert job.is_free
    assert not locks["redis"].held


@pytest.mark.parametrize("alias", ["process", pytest.param("zookeeper", marks=pytest.mark.stores)])
def test_task_and_backend_that_cannot_be_unique_are_refused(
    job: Job, alias: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(alias)
    with pytest.raises(LockMisuse, match="put @unique_task below"):
        unique(job.send, "k")
    with pytest.raises(LockMisuse, match="cannot hand over"):
        job.send(using=alias)
    assert not locks[alias].inspect()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("alias", ["redis", pytest.param("database", marks=pytest.mark.stores)])
def test_eager_task_holds_the_key_while_it_runs(alias: str, caplog) -> None:
    seen = []
    with Celery("eager", set_as_current=False) as celery:
        celery.conf.task_always_eager = True

        @celery.task(shared=False, bind=True)
        @unique_task
        def eager(self: Any, number: int) -> None:
            seen.append((number, self.request.headers[HEADER][0]["backend"]))
            again = unique(eager, "k\n" * 200, [number + 1], using=alias)
            assert again.id == self.request.id

        for number in (1, 2):
            unique(eager, "k\n" * 200, [number], using=alias).get()
    assert seen == [(1, alias), (2, alias)]
    assert not [held for held in locks[alias].inspect() if held.name.startswith("unique:")]
    assert "key" not in caplog.text
