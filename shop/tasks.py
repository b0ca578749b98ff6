"""Scheduled work; each task calls one service."""

from celery import shared_task

from locking import run_once
from shop import orders, payments
from shop.queued import loading


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def expire_unpaid_orders() -> int:
    """Return the pieces of orders that were not paid in time."""
    return orders.expire_unpaid_orders()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def reconcile_queued_sales() -> int:
    """Put Redis right where it differs from the ledger; how many sales needed it."""
    return sum(map(bool, loading.reconcile_all()))


@shared_task(time_limit=60, soft_time_limit=50)
def time_out_payments() -> int:
    """Close payments that the payment service has not answered in time."""
    return payments.time_out_payments()
