"""`manage.py resend_runs`: send unfinished runs again, for projects without Celery."""

from locking.jobs import runs
from locking.management.base import LockCommand


class Command(LockCommand):
    """Repeat messages; run it every minute unless Celery runs `resend_unfinished_runs`."""

    help = "Send another message for each job run that was not started or not finished."

    def handle(self, **options: object) -> None:
        """Send the messages and print their number."""
        self.stdout.write(f"Sent {runs.resend_unfinished()} job runs again.")
