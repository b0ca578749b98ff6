"""`manage.py audit_stock [--json]`: audit every sale."""

from dataclasses import asdict
from json import dumps

from inventory.management.console import HelpfulCommand
from shop.administration.audit import StockAudit, audit_all

COLUMNS = ("sale", "initial", "available", "held", "sold", "verdict")


class Command(HelpfulCommand):
    """Print one line per sale; exit with 1 on any breach."""

    help = "Check that initial = available + held + sold for every sale; exit 1 if not."
    example = "--json"
    has_json = True

    def handle(self, *, json: bool, **options: object) -> None:
        """Print the audits."""
        audits = list(audit_all())
        broken = [audit for audit in audits if not audit.ok]
        if json:
            sales = [{**asdict(audit), "ok": audit.ok} for audit in audits]
            self.stdout.write(dumps({"ok": not broken, "sales": sales}))
        else:
            self.print_table(COLUMNS, map(self._cells, audits))
        if broken:
            raise SystemExit(1)

    def _cells(self, audit: StockAudit) -> tuple[str, ...]:
        numbers = (audit.initial, audit.available, audit.held, audit.sold)
        style = self.style.SUCCESS if audit.ok else self.style.ERROR
        verdict = style("; ".join(audit.breaches) or "ok")
        if audit.reserved is not None:
            verdict += f"; {audit.reserved} reserved in Redis"
        if audit.reserved:
            verdict += f", the oldest {audit.waiting:.0f} s ago"
        if audit.drift:
            verdict += f", drift {audit.drift:+d}"
        return (audit.sale, *map(str, numbers), verdict)
