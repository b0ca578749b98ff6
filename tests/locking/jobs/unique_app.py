"""The Celery application of test_unique.py: tasks that wait at a gate, a list in Redis."""

import json
import os
from typing import Any

import django
from celery import Celery
from celery.signals import worker_ready
from django.conf import settings
from redis import Redis

django.setup()

from locking.jobs.unique import unique_task  # noqa: E402

QUEUE = "unique-tests"
READY = "unique worker ready"

app = Celery("unique-tests", broker=settings.REDIS_URL, set_as_current=False)
app.conf.task_default_queue = QUEUE
app.conf.broker_connection_retry_on_startup = True


@worker_ready.connect
def _report_ready(**kwargs: object) -> None:
    os.write(2, f"{READY}\n".encode())


def wait_at(task: Any, gate: str) -> None:
    redis = Redis.from_url(settings.REDIS_URL, socket_timeout=None)  # as long as the gate
    redis.rpush(f"started:{gate}", json.dumps({"id": task.request.id, "pid": os.getpid()}))
    redis.blpop([gate], timeout=60)


@app.task(shared=False, bind=True, name="work")
@unique_task
def work(self: Any, gate: str) -> None:
    wait_at(self, gate)


@app.task(shared=False, bind=True, name="fail")
@unique_task
def fail(self: Any, gate: str) -> None:
    wait_at(self, gate)
    raise ValueError("failed")


@app.task(shared=False, bind=True, name="soft", soft_time_limit=1)
@unique_task
def soft(self: Any, gate: str) -> None:
    wait_at(self, gate)


@app.task(shared=False, bind=True, name="hard", time_limit=1)
@unique_task
def hard(self: Any, gate: str) -> None:
    wait_at(self, gate)


@app.task(shared=False, bind=True, name="again", max_retries=1)
@unique_task
def again(self: Any, gate: str) -> None:
    wait_at(self, gate)
    if not self.request.retries:
        raise self.retry(countdown=2, args=[f"{gate}-again"])


@app.task(
    shared=False,
    bind=True,
    name="automatic",
    autoretry_for=(ValueError,),
    max_retries=1,
    default_retry_delay=2,
)
@unique_task
def automatic(self: Any, gate: str) -> None:
    wait_at(self, f"{gate}-again" if self.request.retries else gate)
    raise ValueError("failed")


@app.task(shared=False, bind=True, name="hurried", max_retries=1)
@unique_task
def hurried(self: Any, gate: str) -> None:
    """Send the retry some time before the key is handed over to it."""
    wait_at(self, gate)
    if not self.request.retries:
        try:
            self.retry(countdown=0, args=[f"{gate}-again"])
        finally:
            wait_at(self, f"{gate}-sent")
