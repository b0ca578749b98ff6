"""Scheduled work (SCHEDULE in shop/settings/base.py); each task calls one service."""

from collections.abc import Callable
from typing import Any

from celery import shared_task
from django.contrib.sessions.backends.db import SessionStore

from locking.jobs.run_once import run_once
from shop.administration import alerts, sale_management
from shop.mail import service as mail
from shop.orders import service as orders
from shop.payments import service as payments
from shop.purchase import tokens
from shop.reservations.reconciliation import reconcile_all


def _scheduled(service: Callable[[], object], *, seconds: int = 60) -> Any:
    """Make a task of a service that may take `seconds`, with one effect per scheduled time."""
    name = f"{__name__}.{service.__name__}"
    task = shared_task(name=name, time_limit=seconds, soft_time_limit=seconds - 10)
    return task(run_once(service))


expire_unpaid_orders = _scheduled(orders.expire_unpaid_orders)
audit_stock = _scheduled(alerts.audit_stock, seconds=120)
time_out_payments = _scheduled(payments.time_out_payments)
refund_payments = _scheduled(payments.refund_payments)
prune_quotas = _scheduled(sale_management.prune_quotas)
send_mail = _scheduled(mail.send_mail)
delete_old_mail = _scheduled(mail.delete_old_mail)


@_scheduled
def reconcile_queued_sales() -> int:
    """Repair Redis where it differs from the ledger, and return the number of repaired sales."""
    return sum(map(bool, reconcile_all()))


@_scheduled
def prune_sessions() -> None:
    """Delete the rows of expired sessions, and the revocations of expired purchase tokens."""
    SessionStore.clear_expired()
    tokens.delete_expired()
