"""Scheduled work; each task calls one service."""

from celery import shared_task
from django.contrib.sessions.backends.db import SessionStore

from locking import current_run, run_once
from shop.administration import alerts
from shop.administration import sale_schedule as opening
from shop.orders import service as orders
from shop.payments import service as payments
from shop.reservations import reconciliation as loading


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
@run_once
def time_out_payments() -> int:
    """Close payments that the payment service has not answered in time."""
    return payments.time_out_payments()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def open_and_close_sales() -> str:
    """Warm the pages of sales that are about to open; announce those that opened or ended."""
    run = current_run()
    return opening.open_and_close_sales(since=run.previous(), until=run.scheduled_for)


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def prune_sessions() -> None:
    """Delete the rows of sessions that have expired."""
    SessionStore.clear_expired()


@shared_task(time_limit=120, soft_time_limit=110)
@run_once
def audit_stock() -> str:
    """Audit the sales under way and raise the alarm when the stock of one does not add up."""
    return alerts.audit_and_alert()
