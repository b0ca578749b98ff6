"""The orders of a sale as CSV, for spreadsheets and the software of a carrier."""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from io import StringIO

from django.conf import settings
from django.utils import timezone

from shop.models import DeliveryAddress, Order, Sale

CHUNK = 1000
"""Orders that one statement reads."""
FIELDS = ("number", "status", "created_at", "closed_at", "quantity", "unit_price")
OTHERS = {"customer": "customer__username", "email": "customer__email"}
OTHERS |= {name: f"address__{name}" for name in (*DeliveryAddress.LINES, "shipped_at")}
"""Columns by the field of another table that they are read from."""
COLUMNS = (*FIELDS, *OTHERS, "product", "currency")
FORMULA = tuple("=+-@＝＋－＠")
"""With these a spreadsheet begins a formula."""


def export_orders(*, sale: Sale) -> Iterator[str]:
    """Yield the header and the orders of a sale, oldest first, in chunks of lines."""
    yield "\ufeff" + _lines([COLUMNS])  # so that spreadsheets read UTF-8
    last = 0
    orders = Order.objects.filter(sale=sale).order_by("pk")
    rows = orders.values_list("pk", *FIELDS, *OTHERS.values(), "currency")
    while chunk := list(rows.filter(pk__gt=last)[:CHUNK]):
        last = chunk[-1][0]
        yield _lines((*row[1:-1], sale.product.slug, row[-1] or settings.CURRENCY) for row in chunk)


def _lines(rows: Iterable[tuple[object, ...]]) -> str:
    lines = StringIO()
    csv.writer(lines).writerows([_as_text(value) for value in row] for row in rows)
    return lines.getvalue()


def _as_text(value: object) -> str:
    """Return a text that no spreadsheet takes for a formula; empty for None."""
    if isinstance(value, datetime):
        return timezone.localtime(value).isoformat(" ", "seconds")
    text = "" if value is None else str(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
