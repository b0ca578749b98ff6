"""The one way to buy, for the purchase view and for the purchase fast path."""

from typing import Any, Protocol

from shop.models import Sale, User
from shop.purchase.place_order import place_order
from shop.reservations.reserve import reserve


class Outcome(Protocol):
    """A successful purchase: an order, or a reservation of a queued sale."""

    @property
    def url(self) -> str:
        """Path of the page of the order or the reservation."""

    @property
    def status(self) -> int:
        """HTTP status of the JSON response."""

    @property
    def receipt(self) -> dict[str, Any]:
        """Body of the JSON response; the same each time the form is sent."""


def buy(
    *,
    customer_id: int,
    sale: Sale,
    quantity: int,
    key: str,
    is_first: bool = False,
    began: float | None = None,
) -> Outcome:
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
