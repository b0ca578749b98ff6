"""`manage.py after_restore BACKEND`: fence off the leases from before a database restore."""

import getpass
import time
from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError

from inventory import stock
from locking import LockError, policy


class Command(BaseCommand):
    """Exit with 1 if the backend is unavailable."""

    help = "After a restore of the database: activate a lock backend under a new epoch."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add BACKEND."""
        parser.add_argument("backend", help="an alias of settings.LOCKS")

    def handle(self, *, backend: str, **options: object) -> None:
        """Force a switch, then fence off every stock row.

        The dump lacks the epochs and the fences of the lost period. The Unix time exceeds every
        epoch that was counted, and that of an earlier restore.
        """
        try:
            row = policy.switch(
                backend=backend,
                force=True,
                beyond=int(time.time()),
                changed_by=getpass.getuser(),
                reason="restore",
            )
        except LockError as error:
            raise CommandError(str(error)) from error
        stock.fence_off(epoch=row.epoch)
        self.stdout.write(self.style.SUCCESS(f"Active: {row}."))
