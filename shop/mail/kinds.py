"""The kinds of messages: which rows lead to one, and where its link leads.

The text is in templates/mail/<kind>.txt: subject, paragraphs and the words of the link.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.tokens import default_token_generator
from django.db.models import QuerySet
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from shop.mail.models import Message, Reminder
from shop.models import Order, Payment
from shop.payments.providers import can_pay

WINDOW = timedelta(days=1)
"""Age up to which an event leads to a message, so that a search does not read all rows."""
OPENING_LEAD = timedelta(minutes=10)
"""Time before the opening of a sale at which its reminders are sent."""


class Kind(NamedTuple):
    """A kind of message: one for each row of `rows` and its customer."""

    rows: Callable[[datetime, datetime], QuerySet[Any]]
    """Return the rows that need a message now, or for an event since the second time.

    They are read when the message is written, and again before it is sent.
    """
    path: Callable[[Any], str | None]
    """Return the path of the page to which the message links, or None if it is no longer true."""
    about: str = "pk"
    customer: str = "customer"
    """The fields of a row that `Message.about` and `Message.customer` refer to."""
    due: Callable[[datetime, datetime], QuerySet[Any]] | None = None
    """Instead of `rows` when a message is written."""


def _unpaid(now: datetime, since: datetime) -> QuerySet[Order]:
    """Return the pending orders that have at most half of the time to pay left."""
    half = now + timedelta(seconds=settings.PAY_WITHIN_SECONDS / 2)
    status = Order.Status.PENDING if can_pay() else ""
    return Order.objects.filter(status=status, pay_by__gt=now, pay_by__lte=half)


def _paid(now: datetime, since: datetime) -> QuerySet[Order]:
    # The index on created_at bounds the search: an order is paid soon after it was placed.
    placed = since - timedelta(seconds=settings.PAY_WITHIN_SECONDS)
    paid = Order.objects.filter(status=Order.Status.PAID, created_at__gt=placed)
    return paid.filter(closed_at__gt=since)


def _shipped(now: datetime, since: datetime) -> QuerySet[Order]:
    paid = Order.objects.filter(status=Order.Status.PAID)
    return paid.filter(address__shipped_at__gt=since).select_related("address")


def _refunded(now: datetime, since: datetime) -> QuerySet[Payment]:
    return Payment.objects.filter(status=Payment.Status.REFUNDED, refunded_at__gt=since)


def _opening(now: datetime, since: datetime) -> QuerySet[Reminder]:
    """Return the reminders of sales that open soon, or have just opened: staff may do that."""
    times = now - OPENING_LEAD, now + OPENING_LEAD
    return Reminder.objects.filter(sale__product__is_listed=True, sale__opens_at__range=times)


def _opening_soon(now: datetime, since: datetime) -> QuerySet[Reminder]:
    return _opening(now, since).filter(sale__opens_at__gt=now)


def _resets(now: datetime, since: datetime) -> QuerySet[Message]:
    """Return the messages that `request_reset` has written: they are their own rows."""
    return Message.objects.filter(kind="reset", created_at__gt=since)


def _reset_path(message: Message) -> str:
    token = default_token_generator.make_token(message.customer)
    uid = urlsafe_base64_encode(force_bytes(message.customer_id))
    return reverse("password-new", args=[uid, token])


def sale_path(reminder: Reminder) -> str:
    """Return the path of the page of the reminder's sale."""
    return reminder.sale.get_absolute_url()


kinds = {
    "reset": Kind(_resets, _reset_path, about="about"),
    "unpaid": Kind(_unpaid, Order.get_absolute_url),
    "opening": Kind(_opening, sale_path, about="sale", due=_opening_soon),
    "refund": Kind(_refunded, lambda row: row.order.get_absolute_url(), customer="order__customer"),
    "paid": Kind(_paid, Order.get_absolute_url),
    "shipped": Kind(_shipped, Order.get_absolute_url),
}
"""By name, the urgent ones first. Applications add theirs when they are ready."""
