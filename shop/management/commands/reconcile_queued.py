"""`manage.py reconcile_queued`: compare Redis with the ledger and repair Redis."""

from dataclasses import asdict
from json import dumps

from inventory.management.console import HelpfulCommand
from shop.reservations.reconciliation import reconcile_all


class Command(HelpfulCommand):
    """Print one line per current queued sale."""

    help = "Compare every queued sale's state in Redis with the ledger and repair it."
    example = "--json"
    has_json = True

    def handle(self, *, json: bool, **options: object) -> None:
        """Compare customers and outcomes too."""
        repairs = reconcile_all(thoroughly=True)
        if json:
            self.stdout.write(dumps({"sales": [asdict(repair) for repair in repairs]}))
            return
        rows = []
        for repair in repairs:
            _, *found = asdict(repair).items()
            repaired = [f"{name} {value}" for name, value in found if value]
            rows.append((repair.sale, ", ".join(repaired) or "none"))
        self.print_table(("sale", "repairs"), rows)
