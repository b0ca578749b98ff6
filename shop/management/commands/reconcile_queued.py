"""`manage.py reconcile_queued`: compare Redis with the ledger and repair Redis."""

from dataclasses import asdict
from json import dumps

from django.core.management.base import CommandError, CommandParser

from locking.management.console import HelpfulCommand
from shop.errors import BadInput, Overloaded
from shop.reservations.reconciliation import declare_lost as give_away
from shop.reservations.reconciliation import reconcile_all, sales_under_way
from shop.reservations.shards import shards_of


class Command(HelpfulCommand):
    """Print one line per current queued sale."""

    help = "Compare every queued sale's state in Redis with the ledger and repair it."
    example = "--json"
    has_json = True

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the number of a lost server."""
        super().add_arguments(parser)
        parser.add_argument(
            "--declare-lost",
            type=int,
            metavar="NUMBER",
            help="give the units of this server, by its position in QUEUE_URLS, to the others",
        )

    def handle(self, *, json: bool, declare_lost: int | None, **options: object) -> None:
        """Compare customers and outcomes too."""
        if declare_lost is not None:
            self._declare_lost(declare_lost)
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

    def _declare_lost(self, number: int) -> None:
        sales = [one for one in sales_under_way() if 1 < len(shards_of(one)) >= number >= 1]
        if not sales:
            raise CommandError(f"No current sale has reservations on a server {number}.")
        for sale in sales:
            try:
                units = give_away(sale=sale, number=number - 1)
            except BadInput:
                raise CommandError(f"Server {number} of QUEUE_URLS responds: not lost.") from None
            except Overloaded as error:
                raise CommandError(
                    f"Sale {sale.slug} is unchanged; try again: {error!r}"
                ) from error
            self.stderr.write(f"{sale.slug}: moved {units} units of server {number}")
