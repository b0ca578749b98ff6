"""Scheduled work; each task calls one service."""

from celery import shared_task

from shop import orders


@shared_task(time_limit=60, soft_time_limit=50)
def expire_unpaid_orders() -> int:
    """Return the pieces of orders that were not paid in time."""
    return orders.expire_unpaid_orders()
