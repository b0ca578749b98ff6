"""What every page shows besides its own contents."""

from django.http import HttpRequest

from locking import LockError, policy


def guard(request: HttpRequest) -> dict[str, object]:
    """The policy in force, for the banner that warns while the shop can oversell."""
    try:
        return {"policy": policy.current()}
    except LockError:
        return {"policy": None}
