"""Times of messages, which name their zone, and times of rows, which do not if USE_TZ is False."""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings
from django.utils import timezone


def now() -> datetime:
    """Return the present time with its zone, unlike `django.utils.timezone.now`."""
    return datetime.now(UTC)


def stored(moment: datetime) -> datetime:
    """Return the time as a column keeps it: local and without its zone if USE_TZ is False."""
    return moment if settings.USE_TZ else timezone.make_naive(moment)


def aware(moment: datetime) -> datetime:
    """Return a time of a row with its zone."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
