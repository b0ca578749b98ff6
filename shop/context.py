"""What every page shows besides its own contents."""

from django.http import HttpRequest

from locking import LockError, policy


def guard(request: HttpRequest) -> dict[str, object]:
    """The policy in force and whether it is safe, for the banner that warns of overselling."""
    try:
        in_force = policy.current()
        return {"policy": in_force, "is_safe": in_force.is_safe}
    except LockError:
        return {}
