"""The command `manage.py import_products FILE.csv`."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import CommandError

from inventory.import_csv import OPTIONAL, REQUIRED, ImportRefused, import_products
from inventory.management.console import HelpfulCommand


class Command(HelpfulCommand):
    """Import products; exit with 1 and print a line for each problem if the file is invalid."""

    help = (
        "Create or update products from a UTF-8 CSV file, all rows or none. "
        f"Columns: {', '.join(REQUIRED)}; optional: {', '.join(OPTIONAL)}."
    )
    example = "products.csv"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Define the argument FILE."""
        parser.add_argument("file", type=Path, metavar="FILE", help="UTF-8, with a header line")

    def handle(self, *, file: Path, **options: object) -> None:
        """Import the file and print the number of products."""
        try:
            # -sig: spreadsheets put a byte order mark in front.
            with file.open(encoding="utf-8-sig", newline="") as lines:
                count = import_products(lines)
        except OSError as error:
            raise CommandError(f"{file} cannot be read: {error.strerror}") from error
        except ImportRefused as refused:
            faults = "\n  ".join(refused.args)
            raise CommandError(f"{file}: nothing was imported.\n  {faults}") from None
        self.stdout.write(self.style.SUCCESS(f"Imported {count} products."))
