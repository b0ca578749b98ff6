"""Template context of every page."""

from datetime import datetime
from functools import partial

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from locking import LockError, policy
from locking.policy import Policy
from shop.administration import alerts
from shop.mail.service import can_mail
from shop.orders.service import next_deadline
from shop.payments.providers import can_pay
from shop.platform.deadline import current_deadline


def banners(request: HttpRequest) -> dict[str, object]:
    """Return the name of the shop, and functions that banners and header call on demand."""
    return {
        "can_mail": can_mail(),
        "can_pay": can_pay(),
        "shop_name": settings.SHOP_NAME,
        "shop_footer": settings.SHOP_FOOTER,
        "source_url": settings.SOURCE_URL,
        "policy": _policy,
        "stock_alert": alerts.inconsistent_sales,
        "time_to_pay": partial(_time_to_pay, request),
    }


def _policy() -> Policy | None:
    """Return the lock policy, or None if it is unknown; no store is read past the deadline."""
    try:
        return None if current_deadline().is_over else policy.current()
    except LockError:
        return None


def _time_to_pay(request: HttpRequest) -> dict[str, int] | None:
    """Return the time left to pay the customer's earliest unpaid order; None without one.

    A form's response shows none, so that a refused purchase does not cost a query.
    """
    if request.method != "GET" or not can_pay() or current_deadline().is_over:
        return None
    user = request.user
    return time_to_pay(next_deadline(customer=user)) if user.is_authenticated else None


def time_to_pay(pay_by: datetime | None) -> dict[str, int] | None:
    """Return what the header shows of the time left to pay."""
    seconds = int((pay_by - timezone.now()).total_seconds()) if pay_by else 0
    return {"seconds": seconds, "minutes": seconds // 60 + 1} if pay_by else None
