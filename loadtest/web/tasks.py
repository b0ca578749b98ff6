"""Celery tasks that execute load tests and delete old ones."""

from uuid import UUID

from celery import shared_task

from loadtest.web import runs
from locking.jobs.run_once import run_once


@shared_task(soft_time_limit=runs.TIME_LIMIT, time_limit=runs.TIME_LIMIT + 40)
def execute(run_id: str) -> None:
    """Execute the load test with this id."""
    runs.execute(UUID(run_id))


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def prune_runs() -> int:
    """Delete old load tests; return their number."""
    return runs.prune()
