"""Template context of every page."""

from django.http import HttpRequest

from locking import LockError, policy
from shop.administration import alerts
from shop.platform.deadline import current_deadline


def banners(request: HttpRequest) -> dict[str, object]:
    """Return the lock policy, if it is safe, and for staff a function that lists wrong stocks."""
    found: dict[str, object] = {"stock_alert": alerts.inconsistent_sales}
    if current_deadline().is_over:
        return found  # past the hard deadline no store is read
    try:
        active = policy.current()
        return {**found, "policy": active, "is_safe": active.is_safe}
    except LockError:
        return found
