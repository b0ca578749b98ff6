"""The one way to buy, for Django's view and for the turnstile in front of it."""

from typing import Any, Protocol

from shop.models import Sale, User
from shop.purchase.place_order import place_order
from shop.reservations.reserve import reserve


class Outcome(Protocol):
    """What a buyer is told: where to look, and the same as JSON with its status."""

    @property
    def url(self) -> str:
        """The page to go to."""

    @property
    def status(self) -> int:
        """Of the JSON answer."""

    @property
    def receipt(self) -> dict[str, Any]:
        """The JSON answer; the same each time the form is sent."""


def buy(
    *,
    customer_id: int,
    sale: Sale,
    quantity: int,
    key: str,
    is_first: bool = False,
    began: float | None = None,
) -> Outcome:
    """Buy as the sale's fulfilment has it, once for each key. Raises the errors of `place_order`.

    is_first: there is reason to think that the customer has nothing in this sale yet. began: when
    the request came, by the monotonic clock.
    """
    if sale.is_queued:
        return reserve(customer_id=customer_id, sale=sale, quantity=quantity, key=key)
    customer = User(pk=customer_id)
    return place_order(
        customer=customer, sale=sale, quantity=quantity, key=key, is_first=is_first, began=began
    )
