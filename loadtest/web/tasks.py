"""Celery tasks that execute load tests, delete old ones and send test traffic."""

from uuid import UUID

from celery import shared_task

from loadtest.load.http import traffic
from loadtest.web import runs
from locking.jobs.run_once import run_once
from locking.jobs.unique import unique_task


@shared_task(soft_time_limit=runs.TIME_LIMIT, time_limit=runs.TIME_LIMIT + 40)
def execute(run_id: str) -> None:
    """Execute the load test with this id."""
    runs.execute(UUID(run_id))


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def prune_runs() -> int:
    """Delete old load tests; return their number."""
    return runs.prune()


@shared_task(soft_time_limit=traffic.LONGEST, time_limit=traffic.LONGEST + 20)
@unique_task
def send_traffic(url: str) -> None:
    """Send test traffic to the shop at `url`."""
    traffic.send_traffic(url)
