"""The queued way to buy: one round trip to Redis, no query, no lock."""

import binascii
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, ClassVar

from django.conf import settings
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
from shop.purchase.place_order import digest
from shop.reservations import store
from shop.reservations.reconciliation import load

_SIGNATURE = 22
"""Characters of a ticket's signature: 128 bits."""
_REFUSALS = {"key_reused": KeyReused, "limit": LimitReached, "sold_out": SoldOut}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What a form asked for. Its number and its ticket follow from that, so a form sent twice gets
    the same ones, and they outlive whatever Redis forgets."""

    customer_id: int
    sale_id: int
    quantity: int
    key: str

    @property
    def number(self) -> str:
        """Of the order, which nobody can guess."""
        told = f"number.{self.customer_id}.{self.sale_id}.{digest(self.key)}"
        return hmac.digest(_secret(settings.SECRET_KEY), told.encode(), "sha256")[:8].hex().upper()

    @property
    def url(self) -> str:
        """Of the ticket page, which only its buyer may see."""
        body = urlsafe_b64encode(f"{self.sale_id}.{self.quantity}.{self.key}".encode()).decode()
        body = body.rstrip("=")
        return _address().replace("-", _sign(self.customer_id, body) + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Pieces are reserved; whether this very form had done so before."""

    reservation: Reservation
    replayed: bool
    status: ClassVar[int] = HTTPStatus.ACCEPTED

    @property
    def url(self) -> str:
        """The ticket page, which waits for the order and leads to it."""
        return self.reservation.url

    @property
    def receipt(self) -> dict[str, Any]:
        """The same whenever the form is sent: the ticket knows what became of it."""
        return {"status": "queued", "url": self.url}


def reserve(*, customer_id: int, sale: Sale, quantity: int, key: str) -> Queued:
    """Reserve `quantity` pieces of a queued sale, once for each key.

    `sale` may be a moment old. Raises BadInput, NotOpen, SoldOut, LimitReached, KeyReused, and
    Overloaded or ServiceUnavailable if nothing is known to be decided: the same key may then be
    sent again.
    """
    if quantity < 1:
        raise BadInput
    asked = Reservation(customer_id=customer_id, sale_id=sale.pk, quantity=quantity, key=key)
    is_open = sale.opens_at <= timezone.now() < sale.closes_at
    outcome = _ask(sale, asked, is_open)
    if outcome == "not_loaded":
        if not is_open:
            # Nothing is loaded for a sale that sells nothing: the database knows what was sent.
            if _is_decided(asked):
                return Queued(reservation=asked, replayed=True)
            raise NotOpen
        load(sale=sale)
        outcome = _ask(sale, asked, is_open)
    if outcome in ("queued", "replayed"):
        return Queued(reservation=asked, replayed=outcome == "replayed")
    if outcome == "limit" and not is_open:
        raise NotOpen
    raise _REFUSALS.get(outcome, ServiceUnavailable)


def _ask(sale: Sale, asked: Reservation, is_open: bool) -> str:
    return store.reserve(
        sale=sale,
        number=asked.number,
        customer_id=asked.customer_id,
        quantity=asked.quantity,
        key=digest(asked.key),
        limit=sale.limit_per_customer if is_open else 0,
    )


def _is_decided(asked: Reservation) -> bool:
    number = asked.number
    return (
        Order.objects.filter(number=number).exists()
        or RejectedReservation.objects.filter(number=number).exists()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a reservation stands, for its ticket page."""

    status: str
    """waiting, won, a RejectedReservation.Reason, or lost: unknown, and it may be sent again."""
    reservation: Reservation
    sale: Sale
    order: Order | None = None

    @property
    def is_final(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.status != "waiting"


def standing_of(*, customer_id: int, ticket: str) -> Standing:
    """What became of the customer's own ticket; NotFound for everybody else's too.

    While Redis is silent, nobody knows more than the database: what it has not decided waits.
    """
    asked = _read(customer_id, ticket)
    sale = Sale.objects.select_related("product", "stock").filter(pk=asked.sale_id).first()
    if sale is None:
        raise NotFound
    unknown = "lost"
    try:
        status = store.outcome_of(sale=sale, number=asked.number)
    except ServiceUnavailable:
        status, unknown = None, "waiting"
    order = None
    if status in (None, "won", "returned"):
        mine = Order.objects.filter(number=asked.number, customer_id=customer_id)
        order = mine.select_related("sale__product").first()
        if order is None:
            decided = RejectedReservation.objects.filter(number=asked.number).values_list(
                "reason", flat=True
            )
            status = decided.first() or unknown
        else:
            status = "won"
    return Standing(status=str(status), reservation=asked, sale=sale, order=order)


def _read(customer_id: int, ticket: str) -> Reservation:
    signature, body = ticket[:_SIGNATURE], ticket[_SIGNATURE:]
    if not hmac.compare_digest(signature.encode(), _sign(customer_id, body).encode()):
        raise NotFound
    try:
        text = urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise NotFound from None
    found = re.fullmatch(r"(\d+)\.(\d+)\.(.+)", text, re.ASCII | re.DOTALL)
    if found is None:
        raise NotFound
    return Reservation(
        customer_id=customer_id, sale_id=int(found[1]), quantity=int(found[2]), key=found[3]
    )


def _sign(customer_id: int, body: str) -> str:
    told = f"ticket.{customer_id}.{body}".encode()
    signature = hmac.digest(_secret(settings.SECRET_KEY), told, "sha256")
    return urlsafe_b64encode(signature)[:_SIGNATURE].decode()


@cache
def _secret(key: str) -> bytes:
    return hmac.digest(key.encode(), b"shop.reservations", "sha256")


@cache
def _address() -> str:
    return reverse("ticket", args=["-"])
