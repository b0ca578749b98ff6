"""`manage.py audit_stock [--json]`: audit every sale."""

from argparse import ArgumentParser
from dataclasses import asdict
from json import dumps

from django.core.management.base import BaseCommand

from shop.administration.audit import StockAudit, audit_all


def _line(audit: StockAudit) -> str:
    verdict = "ok" if audit.ok else "; ".join(audit.breaches)
    if audit.reserved is not None:
        verdict += f"; {audit.reserved} reserved in Redis"
    if audit.reserved:
        verdict += f", oldest {audit.waiting:.0f} s ago"
    if audit.drift:
        verdict += f", drift {audit.drift:+d}"
    return (
        f"{audit.sale}: {audit.initial} initial, {audit.available} available, "
        f"{audit.held} held, {audit.sold} sold: {verdict}"
    )


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
            self.stdout.write("\n".join(map(_line, audits)))
        if broken:
            raise SystemExit(1)
