"""`manage.py reconcile_queued`: compare Redis with the ledger and repair Redis."""

from argparse import ArgumentParser
from dataclasses import asdict
from json import dumps

from django.core.management.base import BaseCommand

from shop.reservations.reconciliation import reconcile_all


class Command(BaseCommand):
    """Print one line per current queued sale."""

    help = "Compare every queued sale's state in Redis with the ledger and repair it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add --json."""
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *, json: bool, **options: object) -> None:
        """Compare customers and outcomes too."""
        repairs = reconcile_all(thoroughly=True)
        if json:
            self.stdout.write(dumps({"sales": [asdict(repair) for repair in repairs]}))
            return
        for repair in repairs:
            repaired = {name: value for name, value in asdict(repair).items() if value}
            repaired.pop("sale")
            words = ", ".join(f"{name} {value}" for name, value in repaired.items())
            self.stdout.write(f"{repair.sale}: {words or 'agreed'}")
