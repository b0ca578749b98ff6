"""Tasks on a backend of Django's Tasks, and what processes of a test do with them.

The effect of a task is a row, which is counted. A task with a gate adds itself to the Redis list
`started` and waits for an entry in the list that the gate names.
"""

import json
import os
import time
from datetime import UTC, datetime, timedelta

import django
from celery import Celery
from django.conf import settings
from django.db import connection
from redis import Redis

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

app = Celery("tasks", broker=os.environ["REDIS_URL"], set_as_current=False)
app.conf.task_default_queue = f"tasks-{os.environ.get('TASKS_QUEUE')}"
app.conf.broker_connection_retry_on_startup = True
if not settings.configured or os.environ["DJANGO_SETTINGS_MODULE"].endswith("tasks_settings"):
    django.setup()

from locking.jobs import runs  # noqa: E402
from locking.jobs.run_once import current_run, enqueue_run, run_once  # noqa: E402

GATE_TIMEOUT = 60


def wait_at(gate: str) -> None:
    redis = Redis.from_url(os.environ["REDIS_URL"], socket_timeout=None)
    redis.rpush("started", json.dumps({"gate": gate, "pid": os.getpid()}))
    redis.blpop([gate], timeout=GATE_TIMEOUT)


def affect(name: str, number: int, attempt: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, %s, %s)", [name, number, attempt])


@task
@run_once(attempts=3, backoff=0.5)
def once(number: int, gate: str = "") -> None:
    run = current_run()
    if gate and run.attempt == 1:
        wait_at(gate)
    with run.finish():
        affect("once", number, run.attempt)


@task
def control(number: int) -> None:
    affect("control", number, 1)


def send(number: int, every: int, first: int) -> None:
    """Enqueue both tasks for each second from `first` on; one in `every` waits at a gate."""
    for one in range(number):
        gate = "" if one % every else f"gate-{one}"
        enqueue_run(once, [one, gate], scheduled_for=datetime.fromtimestamp(first + one, UTC))
        if one < 5:
            control.enqueue(one)


def resend() -> None:
    """Send unfinished runs again until this process is killed."""
    runs.RESEND_INTERVAL = timedelta(seconds=3)
    while True:
        runs.resend_unfinished()
        time.sleep(0.1)
