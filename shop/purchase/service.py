"""The one way to buy, for the purchase view and for the purchase fast path."""

from shop.models import Sale, User
from shop.purchase.place_order import Placed, place_order
from shop.reservations.reserve import Queued, reserve


def buy(
    *,
    customer_id: int,
    sale: Sale,
    quantity: int,
    key: str,
    is_first: bool = False,
    began: float | None = None,
) -> Placed | Queued:
    """Place an order, or reserve units of a queued sale, once for each key.

    `is_first` is a hint that the customer has no order in this sale yet. `began` is when the
    request arrived (monotonic). Raises the errors of `place_order`.
    """
    if sale.is_queued:
        return reserve(customer_id=customer_id, sale=sale, quantity=quantity, key=key)
    customer = User(pk=customer_id)
    return place_order(
        customer=customer, sale=sale, quantity=quantity, key=key, is_first=is_first, began=began
    )
