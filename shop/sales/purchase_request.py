"""What a customer asks to buy, whether the sale can sell it, and the statements that sell it.

Direct and queued sales share them.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from inventory.statements import Statement, insert_all
from inventory.stock import Withdrawal
from shop.errors import BadInput, LimitReached, NotOpen, ShopError, SoldOut
from shop.models import CustomerQuota, Order, Sale, digest


class PurchaseRequest(NamedTuple):
    """A purchase that a customer asks for."""

    customer_id: int
    sale: Sale
    """With its stock, both as they were a moment ago."""
    quantity: int
    key: str
    """The idempotency key of the form."""
    is_first: bool = False
    """Hint: the customer had no order in this sale when the page was rendered."""
    is_first_attempt: bool = False
    """The client says that it has not sent this form before: no order can have its key."""

    @property
    def hashed_key(self) -> str:
        """Return the key as the order stores it."""
        return digest(self.key)


def refusal_of(wanted: PurchaseRequest, *, taken: int = 0) -> type[ShopError] | None:
    """Return the reason why the sale cannot sell this, as far as it is known; None if it can.

    `taken` are the units that the customer has already.
    """
    sale = wanted.sale
    if wanted.quantity < 1:
        return BadInput
    if sale.phase() in (Sale.Phase.BEFORE, Sale.Phase.ENDED):
        return NotOpen
    if taken + wanted.quantity > sale.limit_per_customer:
        return LimitReached
    return SoldOut if wanted.quantity > sale.left else None


class NewOrder(NamedTuple):
    """An order that is not written yet."""

    number: str
    customer_id: int
    quantity: int
    key: str
    """The digest of the idempotency key."""


def pay_by(placed_at: datetime) -> datetime:
    """Return the time until which an order can be paid."""
    return placed_at + timedelta(seconds=settings.PAY_WITHIN_SECONDS)


def withdrawal_of(
    orders: Sequence[NewOrder], *, sale: Sale, placed_at: datetime, with_quota: Collection[int]
) -> Withdrawal:
    """Return the units of a sale's orders and the statements that write them, without the stock.

    `with_quota` are the customers who have a quota row. Raise LimitReached; so does the commit.
    """
    wanted: Counter[int] = Counter()
    for order in orders:
        wanted[order.customer_id] += order.quantity
    written = insert_all(
        Order,
        NewOrder._fields,
        orders,
        sale_id=sale.pk,
        unit_price=sale.price,
        status=Order.Status.PENDING,
        created_at=placed_at,
        pay_by=pay_by(placed_at),
        closed_at=None,
    )
    statements = [written, *_quotas(sale, wanted, with_quota)]
    return Withdrawal(orders=[(one.number, one.quantity) for one in orders], statements=statements)


def _quotas(sale: Sale, wanted: Counter[int], with_quota: Collection[int]) -> list[Statement]:
    new = [pair for pair in wanted.items() if pair[0] not in with_quota]
    if any(units > sale.limit_per_customer for _, units in new):
        raise LimitReached
    statements = [
        take_quota(sale=sale, customer_id=customer, quantity=units)
        for customer, units in wanted.items()
        if customer in with_quota
    ]
    if new:
        statements.append(insert_all(CustomerQuota, ("customer_id", "taken"), new, sale_id=sale.pk))
    return statements


def take_quota(*, sale: Sale, customer_id: int, quantity: int) -> Statement:
    """Return the UPDATE that adds to a customer's quota; the commit raises LimitReached.

    It enforces the limit without any lock.
    """
    return Statement(
        "UPDATE shop_customerquota SET taken = taken + %s"
        " WHERE customer_id = %s AND sale_id = %s AND taken <= %s",
        [quantity, customer_id, sale.pk, sale.limit_per_customer - quantity],
        if_unchanged=LimitReached,
    )


def return_quotas(*, sale_id: int, orders: Sequence[Order]) -> Statement:
    """Return the UPDATE that subtracts the units of closed orders."""
    ids, marks = [order.pk for order in orders], ", ".join(["%s"] * len(orders))
    closed = (
        f"FROM shop_order WHERE customer_id = shop_customerquota.customer_id AND id IN ({marks})"
    )
    return Statement(
        f"UPDATE shop_customerquota SET taken = taken - (SELECT SUM(quantity) {closed})"  # noqa: S608
        f" WHERE sale_id = %s AND customer_id IN ({marks})",
        [*ids, sale_id, *(order.customer_id for order in orders)],
    )
