"""Scheduled work of the lock library."""

from celery import shared_task
from django.conf import settings

from locking.backends.database.backend import DatabaseBackend
from locking.handler import backend_class, locks
from locking.idempotency import prune
from locking.jobs import run_once as jobs


@shared_task(time_limit=60, soft_time_limit=50)
@jobs.run_once
def sweep_dead_locks() -> int:
    """Delete lock rows that nobody has used for an hour, crashed holders' among them."""
    swept = 0
    for alias, conf in settings.LOCKS.items():
        if issubclass(backend_class(conf), DatabaseBackend):
            backend = locks[alias]
            assert isinstance(backend, DatabaseBackend)
            swept += backend.sweep()
    return swept


@shared_task(time_limit=60, soft_time_limit=50)
@jobs.run_once
def prune_idempotency_keys() -> int:
    """Delete answers that are a day old."""
    return prune()


@shared_task(time_limit=60, soft_time_limit=50)
def resend_unfinished_runs() -> int:
    """Send again the runs that nobody finished. Not run_once: it has to heal that."""
    return jobs.resend_unfinished()


@shared_task(time_limit=60, soft_time_limit=50)
@jobs.run_once
def prune_job_runs() -> int:
    """Delete job runs of long ago."""
    return jobs.prune_runs()
