"""What every page shows besides its own contents."""

from django.http import HttpRequest

from locking import LockError, policy
from shop import alerts


def guard(request: HttpRequest) -> dict[str, object]:
    """For the banners: the policy, whether it is safe, and (asked for staff) what was oversold."""
    found: dict[str, object] = {"stock_alert": alerts.current}
    try:
        in_force = policy.current()
        return {**found, "policy": in_force, "is_safe": in_force.is_safe}
    except LockError:
        return found
