"""Deletion of quotas that prove nothing any more."""

from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from shop.models import CustomerQuota, Order, Sale

KEPT_FOR = timedelta(days=7)
"""Time after the end of a sale for which its quotas are kept, and staff can give it a later end."""
BATCH = 5000
"""Quotas that one transaction deletes."""


def prune_quotas() -> int:
    """Delete the quotas of sales that can neither sell nor get units back; return their number."""
    unpaid = Order.objects.filter(sale=OuterRef("pk"), status=Order.Status.PENDING)
    sales = Sale.objects.filter(
        ~Exists(unpaid),
        Exists(CustomerQuota.objects.filter(sale=OuterRef("pk"))),
        closes_at__lt=timezone.now() - KEPT_FOR,
    ).order_by()
    return sum(_prune(sales.filter(pk=pk)) for pk in sales.values_list("pk", flat=True))


def _prune(sales: QuerySet[Sale]) -> int:
    """Delete the quotas of one sale, as long as it is in `sales`."""
    deleted = 0
    while True:
        with transaction.atomic():
            # Staff cannot change the end of a sale whose row is locked.
            found = list(sales.select_for_update().values_list("pk", flat=True))
            if not found:
                return deleted
            quotas = CustomerQuota.objects.filter(sale__in=found).values_list("pk", flat=True)
            deleted += CustomerQuota.objects.filter(pk__in=list(quotas[:BATCH])).delete()[0]
