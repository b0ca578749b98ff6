"""Queued purchases: reserve units with one round trip to Redis, without a query or a lock."""

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, ClassVar

from django.core.signing import BadSignature, Signer
from django.urls import reverse
from django.utils import timezone

from shop.errors import (
    BadInput,
    KeyReused,
    LimitReached,
    NotFound,
    NotOpen,
    ServiceUnavailable,
    SoldOut,
)
from shop.models import Order, RejectedReservation, Sale
from shop.platform.keys import digest
from shop.reservations import store
from shop.reservations.reconciliation import load

_REFUSALS = {"key_reused": KeyReused, "limit": LimitReached, "sold_out": SoldOut}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The content of a queued purchase.

    The number and the token are derived from it, so a form that is sent twice gets the same ones,
    and they stay valid if Redis loses its data.
    """

    number: str
    """Number of the order; it can be guessed only with the key."""
    customer_id: int
    sale_id: int
    quantity: int
    key: str

    @property
    def url(self) -> str:
        """Path of the reservation page, which only the customer may open."""
        content = [self.number, self.sale_id, self.quantity, self.key]
        token = _signer(self.customer_id).sign_object(content)
        return _path().replace("-", token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Units are reserved, by this purchase or by an earlier one with the same key (replayed)."""

    reservation: Reservation
    replayed: bool
    status: ClassVar[int] = HTTPStatus.ACCEPTED

    @property
    def url(self) -> str:
        """Path of the reservation page, which waits for the order and redirects to it."""
        return self.reservation.url

    @property
    def receipt(self) -> dict[str, Any]:
        """The same each time the form is sent: the reservation page has the outcome."""
        return {"status": "queued", "url": self.url}


def reserve(*, customer_id: int, sale: Sale, quantity: int, key: str) -> Queued:
    """Reserve `quantity` units of a queued sale, once for each key.

    `sale` may be a moment old. Raises BadInput, NotOpen, SoldOut, LimitReached, KeyReused, and
    Overloaded or ServiceUnavailable if nothing is known to be decided: the same key may then be
    sent again.
    """
    if quantity < 1:
        raise BadInput
    wanted = Reservation(
        number=_number(customer_id, sale.pk, key),
        customer_id=customer_id,
        sale_id=sale.pk,
        quantity=quantity,
        key=key,
    )
    is_open = sale.opens_at <= timezone.now() < sale.closes_at
    outcome = _reserve_in_redis(sale, wanted, is_open)
    if outcome == "not_loaded":
        if not is_open:
            # A closed sale is not loaded into Redis: the database knows its reservations.
            if _is_decided(wanted):
                return Queued(reservation=wanted, replayed=True)
            raise NotOpen
        load(sale=sale)
        outcome = _reserve_in_redis(sale, wanted, is_open)
    if outcome in ("queued", "replayed"):
        return Queued(reservation=wanted, replayed=outcome == "replayed")
    if outcome == "limit" and not is_open:
        raise NotOpen
    raise _REFUSALS.get(outcome, ServiceUnavailable)


def _number(customer_id: int, sale_id: int, key: str) -> str:
    # Without a secret, so that a replay after a rotation of SECRET_KEY gets the same number.
    return digest(f"{customer_id}.{sale_id}.{digest(key)}")[:16].upper()


def _reserve_in_redis(sale: Sale, wanted: Reservation, is_open: bool) -> str:
    return store.reserve(
        sale=sale,
        number=wanted.number,
        customer_id=wanted.customer_id,
        quantity=wanted.quantity,
        key=digest(wanted.key),
        limit=sale.limit_per_customer if is_open else 0,
    )


def _is_decided(wanted: Reservation) -> bool:
    return any(
        model.objects.filter(number=wanted.number).exists()
        for model in (Order, RejectedReservation)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationStatus:
    """The state of a reservation, for its page."""

    status: str
    """waiting, won, a RejectedReservation.Reason, or lost: unknown, and it may be sent again."""
    reservation: Reservation
    sale: Sale
    order: Order | None = None

    @property
    def is_final(self) -> bool:
        """True once the status does not change any more."""
        return self.status != "waiting"


def reservation_status(*, customer_id: int, token: str) -> ReservationStatus:
    """Return the status of the customer's reservation; NotFound also for other customers' tokens.

    While Redis is unavailable, a reservation that the database has not decided is waiting.
    """
    wanted = _read_token(customer_id, token)
    sale = Sale.objects.select_related("product", "stock").filter(pk=wanted.sale_id).first()
    if sale is None:
        raise NotFound
    unknown = "lost"
    try:
        status = store.outcome_of(sale=sale, number=wanted.number)
    except ServiceUnavailable:
        status, unknown = None, "waiting"
    order = None
    if status in (None, "won", "returned"):
        own = Order.objects.filter(number=wanted.number, customer_id=customer_id)
        order = own.select_related("sale__product").first()
        if order is None:
            rejected = RejectedReservation.objects.filter(number=wanted.number)
            status = rejected.values_list("reason", flat=True).first() or unknown
        else:
            status = "won"
    return ReservationStatus(status=str(status), reservation=wanted, sale=sale, order=order)


def _read_token(customer_id: int, token: str) -> Reservation:
    if not token.isascii():
        raise NotFound
    try:
        number, sale_id, quantity, key = _signer(customer_id).unsign_object(token)
    except BadSignature:
        raise NotFound from None
    return Reservation(
        number=number, customer_id=customer_id, sale_id=sale_id, quantity=quantity, key=key
    )


def _signer(customer_id: int) -> Signer:
    return Signer(sep=".", salt=f"shop.reservations.{customer_id}")


@cache
def _path() -> str:
    return reverse("reservation", args=["-"])
