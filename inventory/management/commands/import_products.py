"""`manage.py import_products FILE.csv`: one's own products, all rows or none."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from inventory.import_csv import OPTIONAL, REQUIRED, ImportRefused, import_products


class Command(BaseCommand):
    """Exit code 1, and a line for each fault, when the file is refused."""

    help = (
        "Create or update products from a UTF-8 CSV file, all rows or none. "
        f"Columns: {', '.join(REQUIRED)}; optional: {', '.join(OPTIONAL)}."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """FILE."""
        parser.add_argument("file", type=Path, metavar="FILE")

    def handle(self, *, file: Path, **options: object) -> None:
        """Import and say how many."""
        try:
            # -sig: spreadsheets put a byte order mark in front.
            with file.open(encoding="utf-8-sig", newline="") as lines:
                count = import_products(lines)
        except OSError as error:
            raise CommandError(f"{file} cannot be read: {error.strerror}") from error
        except ImportRefused as refused:
            faults = "\n  ".join(refused.problems)
            raise CommandError(f"{file}: nothing was imported.\n  {faults}") from None
        self.stdout.write(self.style.SUCCESS(f"{count} products imported."))
