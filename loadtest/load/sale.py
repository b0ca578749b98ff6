"""The sale of an experiment."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone

from inventory.models import Product
from shop.models import Sale
from shop.sales.queries import create_sale

OPEN_FOR = timedelta(days=1)


def open_sale(
    slug: str, stock: int, *, open_for: timedelta = OPEN_FOR, product: str = "lab", **options: Any
) -> Sale:
    """Create a sale that is open now; `options` are further arguments of `create_sale`."""
    now = timezone.now()
    row, _ = Product.objects.get_or_create(
        slug=product, defaults={"name": "Load test", "price": Decimal(1)}
    )
    return create_sale(
        product=row,
        slug=slug,
        price=row.price,
        quantity=stock,
        opens_at=now - timedelta(seconds=1),
        closes_at=now + open_for,
        **options,
    )
