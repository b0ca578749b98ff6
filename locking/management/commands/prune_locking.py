"""`manage.py prune_locking`: delete the old rows of the library, for projects without Celery."""

from locking import idempotency
from locking.jobs import pruning
from locking.management.base import LockCommand


class Command(LockCommand):
    """Delete old rows; run it every hour unless Celery runs the tasks of `locking.jobs.tasks`."""

    help = "Delete unused lock rows, responses older than a day and job runs older than two days."

    def handle(self, **options: object) -> None:
        """Delete the rows and print their numbers."""
        rows = pruning.sweep_lock_rows()
        responses, runs = idempotency.prune(), pruning.prune_runs()
        self.stdout.write(f"Deleted {rows} lock rows, {responses} responses, {runs} job runs.")
