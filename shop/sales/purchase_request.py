"""What a customer asks to buy, whether the sale can sell it, and the statements that sell it.

Direct and queued sales share them.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import QuerySet

from inventory.statements import Statement, as_stored, insert_all
from inventory.stock import Withdrawal
from shop.errors import (
    BadInput,
    LimitReached,
    NotOpen,
    ShopError,
    SoldOut,
    UnpaidLimitReached,
)
from shop.models import CustomerQuota, Order, Sale, digest

MAX_EXPIRED = 32_767
"""The highest number that the column holds on every database."""


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


def refusal_of(
    wanted: PurchaseRequest, *, taken: int = 0, expired: int = 0
) -> type[ShopError] | None:
    """Return the reason why the sale cannot sell this, as far as it is known; None if it can.

    `taken` are the units that the customer has already, `expired` the orders that were not paid.
    """
    sale = wanted.sale
    if wanted.quantity < 1:
        return BadInput
    if sale.phase() in (Sale.Phase.BEFORE, Sale.Phase.ENDED):
        return NotOpen
    if taken + wanted.quantity > sale.limit_per_customer:
        return LimitReached
    if 0 < settings.UNPAID_LIMIT <= expired:
        return UnpaidLimitReached
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
    orders: Sequence[NewOrder],
    *,
    sale: Sale,
    placed_at: datetime,
    with_quota: Collection[int],
    lock: dict[str, Any] | None = None,
) -> Withdrawal:
    """Return the units of a sale's orders and the statements that write them, without the stock.

    `with_quota` are the customers who have a quota row. The commit raises LimitReached or
    UnpaidLimitReached; this raises LimitReached, too. Before the grant, leave `lock` to
    `record_lock`.
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
        currency=settings.CURRENCY,
        status=Order.Status.PENDING,
        created_at=placed_at,
        pay_by=pay_by(placed_at),
        closed_at=None,
        lock=lock,
    )
    statements = [written, *_quotas(sale, wanted, with_quota)]
    return Withdrawal(orders=[(one.number, one.quantity) for one in orders], statements=statements)


def record_lock(withdrawal: Withdrawal, lock: dict[str, Any]) -> None:
    """Name the grant in the INSERT of one order, which was composed before the lock was asked for.

    Composing it under the lock would keep the next buyer waiting.
    """
    params = withdrawal.statements[0].params
    assert isinstance(params, list)
    params[-1] = as_stored(Order, "lock", lock)


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
    """Return the UPDATE that adds to a customer's quota.

    The commit raises LimitReached or UnpaidLimitReached: it enforces both without any lock.
    """
    most = settings.UNPAID_LIMIT or MAX_EXPIRED + 1
    return Statement(
        "UPDATE shop_customerquota SET taken = taken + %s"
        " WHERE customer_id = %s AND sale_id = %s AND taken <= %s AND expired < %s",
        [quantity, customer_id, sale.pk, sale.limit_per_customer - quantity, most],
        if_unchanged=partial(why_limited, sale_id=sale.pk, customer_id=customer_id),
    )


def why_limited(*, sale_id: int, customer_id: int) -> LimitReached:
    """Return the limit that a customer has reached in a sale; it costs a query."""
    own = CustomerQuota.objects.filter(customer=customer_id)
    return UnpaidLimitReached() if unpaid(own, sale_id=sale_id).exists() else LimitReached()


def unpaid(quotas: QuerySet[CustomerQuota], *, sale_id: int) -> QuerySet[CustomerQuota]:
    """Return those of a sale whose customers may not hold again: too many orders expired."""
    most = settings.UNPAID_LIMIT
    return quotas.filter(sale=sale_id, expired__gte=most) if most else quotas.none()


def return_quotas(*, sale_id: int, orders: Sequence[Order], are_expired: bool = False) -> Statement:
    """Return the UPDATE that subtracts the units of closed orders, and counts the expired ones."""
    ids, marks = [order.pk for order in orders], ", ".join(["%s"] * len(orders))
    closed = (
        f"FROM shop_order WHERE customer_id = shop_customerquota.customer_id AND id IN ({marks})"
    )
    update = f"UPDATE shop_customerquota SET taken = taken - (SELECT SUM(quantity) {closed})"  # noqa: S608
    if are_expired and settings.UNPAID_LIMIT:  # without a limit, no end to the number either
        update += f", expired = expired + (SELECT COUNT(*) {closed})"
        ids += ids
    return Statement(
        f"{update} WHERE sale_id = %s AND customer_id IN ({marks})",
        [*ids, sale_id, *(order.customer_id for order in orders)],
    )
