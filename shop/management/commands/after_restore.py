"""`manage.py after_restore BACKEND`: no lease of before the restore writes any more."""

import getpass
import time
from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError

from inventory import stock
from locking import LockError, policy


class Command(BaseCommand):
    """Exit code 1 when the backend does not answer."""

    help = "After the database was restored: put a lock in force under an epoch that is new to all."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """BACKEND."""
        parser.add_argument("backend", help="an alias of settings.LOCKS")

    def handle(self, *, backend: str, **options: object) -> None:
        """Switch by force, then fence every row of stock.

        The dump knows neither the epochs nor the fences of the time that is lost. Seconds since
        1970 are more than any epoch that was counted, and more than an earlier restore's.
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
        self.stdout.write(self.style.SUCCESS(f"In force: {row}."))
