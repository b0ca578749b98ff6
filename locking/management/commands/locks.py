"""`manage.py locks [--break NAME --yes-break NAME]`: list held locks or break one."""

from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError

from locking import policy
from locking.backends.base import Held
from locking.exceptions import LockError
from locking.handler import locks

COLUMNS = ("name", "owner", "token", "time left", "count", "waiters")


class Command(BaseCommand):
    """List the held locks of a backend, or break one whose name is given twice."""

    help = "List the locks that are held now, or break one of them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", help="an alias of LOCKS (default: the active backend)")
        parser.add_argument("--break", dest="name", help="end the holder's lease on this lock")
        parser.add_argument("--yes-break", dest="again", help="the same name, as confirmation")

    def handle(
        self, *, backend: str | None, name: str | None, again: str | None, **options: object
    ) -> None:
        """List the locks or break one."""
        try:
            alias = backend or policy.current().backend
            if name is None and again is None:
                self._list(alias)
            else:
                self._break(alias, name, again)
        except LockError as error:
            raise CommandError(str(error)) from error

    def _list(self, alias: str) -> None:
        held = sorted(locks[alias].inspect(), key=lambda each: each.name)
        rows = [COLUMNS, *map(_cells, held)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows if held else ():
            line = "  ".join(map(str.ljust, row, widths))
            self.stdout.write(line.rstrip())
        if not held:
            self.stdout.write(f"No locks are held in {alias!r}.")
        if not locks[alias].capabilities.lists_holders:
            self.stdout.write(f"{alias!r} cannot list the locks of other processes.")

    def _break(self, alias: str, name: str | None, again: str | None) -> None:
        if name is None or name != again:
            raise CommandError(
                "The holder of a broken lock goes on working beside the next holder. "
                "To confirm, give the same name as --break and as --yes-break."
            )
        if not locks[alias].break_lock(name):
            raise CommandError(f"{name!r} is not held in {alias!r}.")
        self.stdout.write(f"Lock {name!r} broken.")


def _cells(held: Held) -> tuple[str, ...]:
    left = None if held.expires_in is None else f"{held.expires_in:.1f} s"
    cells = (held.name, held.owner, held.token, left, held.count, held.waiters)
    return tuple("" if cell is None else str(cell) for cell in cells)
