"""Delivery addresses: from the customer to the packing list.

A change locks the row of the order, so that staff ship to the address that they have printed.
"""

from collections.abc import Mapping

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from shop.errors import InvalidTransition
from shop.models import DeliveryAddress, Order, Sale, User

CLOSED = _("It has been shipped, cancelled or refunded, or it has expired.")


def address_of(*, order: Order) -> DeliveryAddress | None:
    """Return the address of an order; None before the customer has given one."""
    return DeliveryAddress.objects.filter(order=order).first()


def last_address(*, customer: User) -> DeliveryAddress | None:
    """Return the address of the customer's newest order that has one."""
    given = DeliveryAddress.objects.filter(order__customer=customer)
    return given.order_by("-order_id").first()


def can_change(*, order: Order, address: DeliveryAddress | None) -> bool:
    """Return True if the order is neither closed nor shipped."""
    return order.status in Order.LIVE and not (address and address.shipped_at)


@transaction.atomic
def save_address(*, order: Order, lines: Mapping[str, str]) -> None:
    """Save the address of an order. Raise InvalidTransition if it is closed or shipped."""
    order = Order.objects.select_for_update().get(pk=order.pk)
    address = address_of(order=order)
    if not can_change(order=order, address=address):
        raise InvalidTransition(CLOSED)
    revision = 1 + (address.revision if address else 0)
    DeliveryAddress(order=order, revision=revision, **lines).save()


def to_pack(*, sale: Sale) -> QuerySet[DeliveryAddress]:
    """Return the addresses of a sale's paid orders that are not shipped, oldest order first."""
    paid = DeliveryAddress.objects.filter(order__sale=sale, order__status=Order.Status.PAID)
    return paid.filter(shipped_at=None).order_by("order_id")


@transaction.atomic
def mark_shipped(*, sale: Sale, printed: Mapping[int, int]) -> int:
    """Mark paid orders as shipped and return how many; `printed` are revisions by order.

    An order whose address has changed since stays on the packing list.
    """
    paid = Order.objects.filter(pk__in=printed, sale=sale, status=Order.Status.PAID)
    locked = [order.pk for order in paid.select_for_update()]
    open_rows = DeliveryAddress.objects.filter(pk__in=locked, shipped_at=None)
    same = [row.pk for row in open_rows if row.revision == printed[row.pk]]
    return DeliveryAddress.objects.filter(pk__in=same).update(shipped_at=timezone.now())
