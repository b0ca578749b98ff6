"""What every page shows besides its own contents."""

import math

from django.http import HttpRequest

from locking import LockError, policy
from shop.administration import alerts
from shop.purchase.place_order import is_late


def guard(request: HttpRequest) -> dict[str, object]:
    """For the banners: the policy, whether it is safe, and (asked for staff) what was oversold."""
    found: dict[str, object] = {"stock_alert": alerts.current}
    if is_late(request.META.get("shop.started_at", math.inf)):
        return found  # whoever has waited so long does not wait for that
    try:
        in_force = policy.current()
        return {**found, "policy": in_force, "is_safe": in_force.is_safe}
    except LockError:
        return found
