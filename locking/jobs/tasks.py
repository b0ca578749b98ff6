"""Scheduled jobs of the lock library."""

from celery import shared_task
from celery.signals import task_postrun, task_prerun

from locking import idempotency
from locking.handler import begin_work, end_work
from locking.jobs import pruning, runs
from locking.jobs.run_once import run_once

task_prerun.connect(begin_work)
task_postrun.connect(end_work)


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def sweep_dead_locks() -> int:
    """Delete lock rows unused for an hour, including those of crashed holders."""
    return pruning.sweep_lock_rows()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def prune_idempotency_keys() -> int:
    """Delete stored responses older than a day."""
    return idempotency.prune()


@shared_task(time_limit=60, soft_time_limit=50)
def resend_unfinished_runs() -> int:
    """Send another message for unfinished runs. Not run_once, because it repairs those."""
    return runs.resend_unfinished()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def prune_job_runs() -> int:
    """Delete old job runs."""
    return pruning.prune_runs()
