"""Queued purchases: reserve units with one round trip to Redis, without a query or a lock."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from django.core.signing import BadSignature, Signer

from shop.errors import (
    BadInput,
    KeyReused,
    NotFound,
    NotOpen,
    ServiceUnavailable,
    SoldOut,
)
from shop.models import Order, Sale, digest, path_of
from shop.reservations import store
from shop.reservations.reconciliation import decided_in, load
from shop.reservations.store import Entry
from shop.sales.purchase_request import PurchaseRequest, refusal_of, why_limited

_REFUSALS = {"key_reused": KeyReused, "sold_out": SoldOut}


@dataclass(frozen=True, slots=True)
class Queued:
    """A reservation, made by this purchase or by an earlier one with the same key (replayed).

    The number and the token in the URL are derived from the rest, so a form that is sent twice gets
    the same ones, and they stay valid if Redis loses its data.
    """

    number: str
    """Number of the order; it can be guessed only with the key."""
    customer_id: int
    sale_id: int
    quantity: int
    key: str
    replayed: bool = False
    status: ClassVar[int] = HTTPStatus.ACCEPTED

    @property
    def url(self) -> str:
        """Path of the reservation page, which only the customer may open.

        The page waits for the order and redirects to it.
        """
        content = [self.number, self.sale_id, self.quantity, self.key]
        return path_of("reservation").replace("-", _signer(self.customer_id).sign_object(content))

    @property
    def receipt(self) -> dict[str, Any]:
        """The same each time the form is sent: the reservation page has the outcome."""
        return {"status": "queued", "url": self.url}


def reserve(wanted: PurchaseRequest) -> Queued:
    """Reserve units of a queued sale, once for each key.

    Raises BadInput, NotOpen, SoldOut, LimitReached, UnpaidLimitReached, KeyReused, and Overloaded
    or ServiceUnavailable if nothing is known to be decided: the same key may then be sent again.
    """
    refusal = refusal_of(wanted)
    if refusal is BadInput:
        raise refusal
    customer_id, sale, quantity = wanted.customer_id, wanted.sale, wanted.quantity
    # Without a secret, so that a replay after a rotation of SECRET_KEY gets the same number.
    number = digest(f"{customer_id}.{sale.pk}.{wanted.hashed_key}")[:16].upper()
    entry = Entry("", number, customer_id, quantity, wanted.hashed_key)
    is_open = refusal is not NotOpen
    limit = sale.limit_per_customer if is_open else 0
    outcome = store.reserve(sale=sale, entry=entry, limit=limit)
    if outcome == "not_loaded" and is_open:
        load(sale=sale)
        outcome = store.reserve(sale=sale, entry=entry, limit=limit)
    elif outcome == "not_loaded":
        # An ended sale is not loaded into Redis: the database knows its reservations.
        decision = decided_in(sale=sale, numbers=[number]).get(number)
        found = "replayed" if decision and decision.quantity == quantity else "key_reused"
        outcome = found if decision else "limit"
    if outcome == "limit" and not is_open:
        raise NotOpen
    if outcome == "limit":
        raise why_limited(sale_id=sale.pk, customer_id=customer_id)
    if outcome not in ("queued", "replayed"):
        raise _REFUSALS.get(outcome, ServiceUnavailable)
    return Queued(number, customer_id, sale.pk, quantity, wanted.key, outcome == "replayed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationStatus:
    """The state of a reservation, for its page."""

    status: str
    """waiting, won, a RejectedReservation.Reason, or lost: unknown, and it may be sent again."""
    reservation: Queued
    sale: Sale
    order_url: str | None = None
    """Path of the order's page."""


def reservation_status(*, customer_id: int, token: str) -> ReservationStatus:
    """Return the status of the customer's reservation; NotFound also for other customers' tokens.

    While Redis is unavailable, a reservation that the database has not decided is waiting.
    """
    try:
        number, *rest = _signer(customer_id).unsign_object(token)
    except BadSignature:
        raise NotFound from None
    wanted = Queued(number, customer_id, *rest)
    # Each poll comes here: what only the page shows is read with the page.
    sale = Sale.objects.only("slug", "generation", "product").filter(pk=wanted.sale_id).first()
    if sale is None:
        raise NotFound
    status, order_url = _status_of(sale, wanted.number), None
    if status in ("won", "returned"):
        status, order_url = "won", Order(number=wanted.number).get_absolute_url()
    return ReservationStatus(status=status, reservation=wanted, sale=sale, order_url=order_url)


def _status_of(sale: Sale, number: str) -> str:
    """Return waiting, lost, or what the database decided.

    A load may move the reservation to a new generation meanwhile: it is lost only if it was missing
    in one that was current all the time.
    """
    looked_in = None
    try:
        while not store.is_waiting(sale=sale, number=number):
            if decided := decided_in(sale=sale, numbers=[number]):
                return decided[number].outcome
            sale.refresh_from_db(fields=["generation"])
            if sale.generation == looked_in:
                return "lost"
            looked_in = sale.generation
    except ServiceUnavailable:
        if decided := decided_in(sale=sale, numbers=[number]):
            return decided[number].outcome
    return "waiting"


def _signer(customer_id: int) -> Signer:
    return Signer(sep=".", salt=f"shop.reservations.{customer_id}")
