"""`manage.py audit_stock [--json]`: audit every sale."""

from argparse import ArgumentParser
from dataclasses import asdict
from json import dumps

from django.core.management.base import BaseCommand

from shop.administration.audit import audit_all


def _table(rows: list[tuple[str, ...]]) -> str:
    """Return the rows as text in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


class Command(BaseCommand):
    """Print one line per sale; exit with 1 on any breach."""

    help = "Prove initial = available + held + sold for every sale; exit 1 on any breach."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add --json."""
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *, json: bool, **options: object) -> None:
        """Print the audits."""
        audits = list(audit_all())
        broken = [audit for audit in audits if not audit.ok]
        if json:
            sales = [{**asdict(audit), "ok": audit.ok} for audit in audits]
            self.stdout.write(dumps({"ok": not broken, "sales": sales}))
        else:
            rows: list[tuple[str, ...]] = [
                ("sale", "initial", "available", "held", "sold", "in Redis", "verdict")
            ]
            for audit in audits:
                counts = (audit.initial, audit.available, audit.held, audit.sold)
                verdict = "ok" if audit.ok else "; ".join(audit.breaches)
                queued = "" if audit.reserved is None else f"{audit.reserved} reserved"
                if audit.reserved:
                    queued += f", oldest {audit.waiting:.0f} s ago"
                if audit.drift:
                    queued += f", drift {audit.drift:+d}"
                rows.append((audit.sale, *map(str, counts), queued, verdict))
            self.stdout.write(_table(rows))
        if broken:
            raise SystemExit(1)
