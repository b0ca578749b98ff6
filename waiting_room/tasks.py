"""The scheduled work of waiting rooms."""

from celery import shared_task

from locking.jobs.run_once import run_once
from waiting_room import service


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def admit() -> None:
    """Move admission forward where no page does."""
    service.admit()
