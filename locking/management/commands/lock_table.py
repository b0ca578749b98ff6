"""`manage.py lock_table [--write FILE]`: what each backend declares, as Markdown."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from locking.declared import markdown

START, END = "<!-- lock_table -->\n", "<!-- /lock_table -->"


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
        text = write.read_text()
        if START not in text or END not in text:
            raise CommandError(f"{write} has no place between {START.strip()} and {END}.")
        before, rest = text.split(START, 1)
        write.write_text(before + START + markdown() + END + rest.split(END, 1)[1])
