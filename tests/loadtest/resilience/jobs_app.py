"""The Celery application of the workers: two tasks on the same schedule, one of them run_once.

The effect of a task is one row in `job_effect`, which is counted afterwards. A task with a `gate`
adds itself to the Redis list `started` and waits for an entry in the list that the gate names, so
that a test can inject a fault in the middle.
"""

import json
import os
import random
import time
from datetime import timedelta
from typing import Any

import django
from celery import Celery
from django.conf import settings
from django.db import connection
from redis import Redis

from tests.loadtest.resilience import EVERY

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
django.setup()

from locking.jobs import runs  # noqa: E402
from locking.jobs.run_once import current_run, run_once  # noqa: E402

TTL = 2.0
"""Seconds of the lease of a job run."""
WORK_SECONDS = 1.5
"""Seconds that `once` takes at most without a gate."""
GATE_TIMEOUT = 60

app = Celery("jobs")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.imports = ["locking.jobs.tasks"]
app.conf.broker_transport_options = {
    "visibility_timeout": 1,  # a message that is not acknowledged by then is delivered again
    "unacked_restore_interval": 0.2,
    "unacked_restore_throttle": 1,
}
app.conf.beat_schedule = {
    "once": {"task": "once", "schedule": EVERY},
    "control": {"task": "control", "schedule": EVERY},
    "resend": {"task": "locking.jobs.tasks.resend_unfinished_runs", "schedule": EVERY},
}
runs.RESEND_INTERVAL = timedelta(seconds=EVERY)  # as often as the schedule


def _wait_at(gate: str, attempt: int) -> None:
    redis = Redis.from_url(settings.REDIS_URL, socket_timeout=None)  # as long as the gate
    redis.rpush("started", json.dumps({"gate": gate, "attempt": attempt, "pid": os.getpid()}))
    redis.blmove(gate, gate, GATE_TIMEOUT)  # the entry stays, for any number of redeliveries


def _affect(task: str, when: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO job_effect VALUES (%s, %s)", [task, when])


@app.task(name="once")
@run_once(ttl=TTL, backoff=EVERY)
def once(gate: str | None = None) -> None:
    """Write one effect per scheduled time."""
    run = current_run()
    if gate:
        _wait_at(gate, run.attempt)
    else:
        time.sleep(random.uniform(0, WORK_SECONDS))
    with run.finish():
        _affect("once", run.scheduled_for.isoformat())


@app.task(name="control", bind=True)
def control(self: Any, gate: str | None = None) -> None:
    """Write one effect per message."""
    if gate:
        _wait_at(gate, 1)
    _affect("control", self.request.headers[runs.HEADER])
