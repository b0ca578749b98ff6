"""The Celery application of test_unique.py: tasks that wait at a gate, a list in Redis."""

import json
import os
from collections.abc import Callable
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


def declared(name: str, **options: Any) -> Callable[..., Any]:
    """Declare a unique task."""
    return lambda body: app.task(shared=False, bind=True, name=name, **options)(unique_task(body))


work = declared("work")(wait_at)
soft = declared("soft", soft_time_limit=1)(wait_at)
hard = declared("hard", time_limit=1)(wait_at)


@declared("fail")
def fail(self: Any, gate: str) -> None:
    wait_at(self, gate)
    raise ValueError("failed")


@declared("again", max_retries=1)
def again(self: Any, gate: str) -> None:
    wait_at(self, gate)
    if not self.request.retries:
        raise self.retry(countdown=2, args=[f"{gate}-again"])


@declared("automatic", autoretry_for=(ValueError,), max_retries=1, default_retry_delay=2)
def automatic(self: Any, gate: str) -> None:
    wait_at(self, f"{gate}-again" if self.request.retries else gate)
    raise ValueError("failed")


@declared("hurried", max_retries=1)
def hurried(self: Any, gate: str) -> None:
    """Send the retry some time before the key is handed over to it."""
    wait_at(self, gate)
    if not self.request.retries:
        try:
            self.retry(countdown=0, args=[f"{gate}-again"])
        finally:
            wait_at(self, f"{gate}-sent")
