"""The scheduled work of waiting rooms."""

from celery import shared_task

from waiting_room import service


@shared_task(time_limit=60, soft_time_limit=50)
def admit() -> None:
    """Move admission forward where no page does; a second run at the same time is harmless."""
    service.admit()
