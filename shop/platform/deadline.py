"""The hard deadline of a request."""

import time

from django.conf import settings


def is_late(began: float) -> bool:
    """Return True once a request that arrived at `began` (monotonic) has passed HARD_DEADLINE."""
    deadline: float = began + settings.HARD_DEADLINE
    return time.monotonic() > deadline
