"""What the commands have in common: errors without a traceback, and tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from locking.exceptions import LockError


class LockCommand(BaseCommand):
    """A command that fails with the message of an error of a lock or of the database."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; raise CommandError for these errors."""
        try:
            return super().execute(*args, **options)
        except (LockError, Error) as error:  # DatabaseError, InterfaceError
            raise CommandError(str(error)) from error

    def print_table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print the rows below their headings."""
        lines = [headings, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            self.stdout.write("  ".join(cells).rstrip())
