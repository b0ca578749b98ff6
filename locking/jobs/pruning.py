"""Deletion of old rows; `manage.py prune_locking` and Celery tasks call it."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from locking.backends.database.backend import DatabaseBackend
from locking.handler import locks
from locking.models import JobRun

RUNS_KEPT_FOR = timedelta(days=2)
"""How long runs are kept: longer than any message that they reveal as a duplicate."""


def sweep_lock_rows() -> int:
    """Delete lock rows unused for an hour, including those of crashed holders."""
    backends = [locks[alias].backend for alias in locks]
    return sum(each.sweep() for each in backends if isinstance(each, DatabaseBackend))


def prune_runs() -> int:
    """Delete runs older than RUNS_KEPT_FOR; return their number."""
    return JobRun.objects.filter(scheduled_for__lt=timezone.now() - RUNS_KEPT_FOR).delete()[0]
