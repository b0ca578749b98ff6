"""Load tests in a worker: a page must not wait for them."""

from uuid import UUID

from celery import shared_task

from loadtest import runs


@shared_task(soft_time_limit=runs.TIME_LIMIT, time_limit=runs.TIME_LIMIT + 20)
def execute(run_id: str) -> None:
    """Run the load test that waits under this id."""
    runs.execute(UUID(run_id))
