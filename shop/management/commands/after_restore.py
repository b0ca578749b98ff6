"""`manage.py after_restore BACKEND`: fence off the leases from before a database restore."""

import getpass
import time
from argparse import ArgumentParser

from inventory import stock
from inventory.management.console import HelpfulCommand
from locking import locks, policy


class Command(HelpfulCommand):
    """Exit with 1 if the backend is unavailable."""

    help = "After restoring the database: activate a lock backend and refuse older leases."
    example = "redis"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add BACKEND."""
        parser.add_argument("backend", help="name of a lock backend in settings.LOCKS")

    def handle(self, *, backend: str, **options: object) -> None:
        """Fence off every stock row, then force a switch to the epoch that the rows accept.

        In this order, no process writes under the new policy to a row that still accepts the
        holders of the lost period. The dump lacks their epochs and fences. The Unix time exceeds
        every epoch that was counted, and that of an earlier restore.
        """
        beyond = max(policy.stored_policy().epoch, int(time.time()))
        locks[backend].probe()  # before the rows refuse all writers
        stock.fence_off(epoch=beyond + 1)
        row = policy.switch(
            backend=backend,
            force=True,
            beyond=beyond,
            changed_by=getpass.getuser(),
            reason="restore",
        )
        self.stdout.write(self.style.SUCCESS(f"Active: {row}."))
