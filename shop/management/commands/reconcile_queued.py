"""`manage.py reconcile_queued`: compare Redis with the ledger and put Redis right."""

from argparse import ArgumentParser
from dataclasses import asdict
from json import dumps

from django.core.management.base import BaseCommand

from shop.reservations.reconciliation import reconcile_all


class Command(BaseCommand):
    """Prints a line for each queued sale that is under way."""

    help = "Compare every queued sale's state in Redis with the ledger and repair it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--json."""
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *, json: bool, **options: object) -> None:
        """Thoroughly: customers and tickets too."""
        repairs = reconcile_all(thoroughly=True)
        if json:
            self.stdout.write(dumps({"sales": [asdict(repair) for repair in repairs]}))
            return
        for repair in repairs:
            told = {name: value for name, value in asdict(repair).items() if value}
            told.pop("sale")
            words = ", ".join(f"{name} {value}" for name, value in told.items())
            self.stdout.write(f"{repair.sale}: {words or 'agreed'}")
