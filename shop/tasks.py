"""Scheduled work; each task calls one service."""

from celery import shared_task
from django.contrib.sessions.backends.db import SessionStore

from locking import current_run, run_once
from shop.administration import alerts, sale_management
from shop.orders import service as orders
from shop.payments import service as payments
from shop.purchase import revocation
from shop.reservations.reconciliation import reconcile_all


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def expire_unpaid_orders() -> int:
    """Expire orders that were not paid in time, and release their units."""
    return orders.expire_unpaid_orders()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def reconcile_queued_sales() -> int:
    """Repair Redis where it differs from the ledger, and return the number of repaired sales."""
    return sum(map(bool, reconcile_all()))


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def time_out_payments() -> int:
    """Close payments without a callback in time."""
    return payments.time_out_payments()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def open_and_close_sales() -> str:
    """Cache the pages of sales that are about to open; log those that opened or ended."""
    run = current_run()
    return sale_management.open_and_close_sales(since=run.previous(), until=run.scheduled_for)


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def prune_sessions() -> None:
    """Delete the rows of expired sessions, and the revocations of expired purchase tokens."""
    SessionStore.clear_expired()
    revocation.delete_expired()


@shared_task(time_limit=120, soft_time_limit=110)
@run_once
def audit_stock() -> str:
    """Audit the current sales and alert if one is inconsistent."""
    return alerts.audit_and_alert()
