"""`manage.py locks [--break NAME --yes-break NAME]`: list held locks or break one."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from locking import policy
from locking.claims import Held
from locking.handler import locks
from locking.management.base import LockCommand

COLUMNS = ("name", "owner", "token", "time left", "count", "waiters")


class Command(LockCommand):
    """List the held locks of a backend, or break one whose name is given twice."""

    help = "List the locks that are held now, or break one of them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", help="lock backend (default: the active one)")
        parser.add_argument("--break", dest="name", help="take this lock from its holder")
        parser.add_argument("--yes-break", dest="again", help="confirm the lock name")

    def handle(
        self, *, backend: str | None, name: str | None, again: str | None, **options: object
    ) -> None:
        """List the locks or break one."""
        alias = backend or policy.current().backend
        if name is None and again is None:
            self._list(alias)
        else:
            self._break(alias, name, again)

    def _list(self, alias: str) -> None:
        if held := sorted(locks[alias].inspect(), key=lambda each: each.name):
            self.print_table(COLUMNS, map(_cells, held))
        else:
            self.stdout.write(f"No locks are held in {alias}.")
        if not locks[alias].capabilities.lists_holders:
            self.stdout.write(f"Locks that other processes hold in {alias} can't be listed.")

    def _break(self, alias: str, name: str | None, again: str | None) -> None:
        if name is None or name != again:
            raise CommandError(
                "The holder of a broken lock keeps working, at the same time as the next holder. "
                "To confirm, repeat the name: --break NAME --yes-break NAME."
            )
        if not locks[alias].break_lock(name):
            raise CommandError(f"Lock {name!r} is not held in {alias}.")
        self.stdout.write(f"Lock {name!r} broken.")


def _cells(held: Held) -> tuple[str, ...]:
    left = None if held.expires_in is None else f"{held.expires_in:.1f} s"
    cells = (held.name, held.owner, held.token, left, held.count, held.waiters)
    return tuple("" if cell is None else str(cell) for cell in cells)
