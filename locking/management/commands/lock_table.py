"""`manage.py lock_table [--write FILE]`: what each backend declares, as Markdown."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from locking import marked
from locking.declared import markdown


class Command(BaseCommand):
    """Prints the table, or puts it between its marks in a file."""

    help = "The table of backend x property, from the backends' own declarations."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--write FILE."""
        parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table there")

    def handle(self, *, write: Path | None, **options: object) -> None:
        """Print or write."""
        if write is None:
            self.stdout.write(markdown())
            return
        try:
            marked.write(write, "lock_table", markdown())
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from error
