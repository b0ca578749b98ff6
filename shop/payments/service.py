"""Pay orders through a payment provider.

The payment provider reports the outcome in a signed callback, which may arrive late, twice or
never. In each case a payment ends in one state, and at most one payment pays an order.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _

from inventory.statements import Statement, as_stored
from locking.failpoints import reach
from shop.errors import BadInput, Forgery, InvalidTransition, NotFound
from shop.models import Order, Payment, User
from shop.orders.service import pay_order
from shop.payments import gateway

Status = Payment.Status


def start_payment(*, order: Order) -> Payment:
    """Return the open payment of an order, or a new one.

    Raises InvalidTransition unless the order is payable.
    """
    if not order.is_payable:
        raise InvalidTransition
    payment = order.payments.first()
    if payment is None or not payment.is_open:
        deadline = timezone.now() + timedelta(seconds=settings.PAYMENT_TIMEOUT_SECONDS)
        payment = order.payments.create(amount=order.total, answer_by=min(deadline, order.pay_by))
    return payment


def pay_at_once(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Pay an order without asking the customer, and write `also` in the same transaction.

    Raises InvalidTransition unless the order is payable.
    """
    if not _approve(start_payment(order=order), also):
        raise InvalidTransition


def get_payment(*, customer: User, reference: str) -> Payment:
    """Return one of the customer's payments; NotFound also for the payments of others."""
    mine = Payment.objects.filter(reference=reference, order__customer=customer)
    payment = mine.select_related("order__sale__product").first()
    if payment is None:
        raise NotFound
    return payment


def receive(body: bytes, signature: str) -> Payment:
    """Apply a callback of the payment provider; a repeated one changes nothing.

    Raises Forgery for a wrong signature, BadInput for a malformed body or a wrong amount, and
    NotFound for an unknown payment.
    """
    if not gateway.is_genuine(body=body, signature=signature):
        raise Forgery
    try:
        fields = json.loads(body)
        reference, amount, approved = (fields[name] for name in ("reference", "amount", "approved"))
    except (ValueError, LookupError, TypeError):
        raise BadInput(_("The body is not JSON.")) from None
    payment = Payment.objects.filter(reference=str(reference)).first()
    if payment is None:
        raise NotFound
    if type(approved) is not bool or amount != str(payment.amount):
        raise BadInput(_("The amount is not that of the payment."))
    (_approve if approved else _decline)(payment)
    payment.refresh_from_db(fields=["status", "closed_at"])
    return payment


def time_out_payments(*, now: datetime | None = None) -> int:
    """Close payments without a callback in time, and return how many."""
    now = now or timezone.now()
    late = Payment.objects.filter(status=Status.STARTED, answer_by__lte=now)
    return late.update(status=Status.TIMED_OUT, closed_at=now)


def _approve(payment: Payment, also: Sequence[Statement] = ()) -> bool:
    """Pay the order, or refund the payment if the order is closed or the approval is late.

    Return True if this call paid the order; otherwise `also` was not written, even if an earlier
    call approved the payment.
    """
    reach("payment.approve")
    now = timezone.now()
    stored = as_stored(Payment, "closed_at", now)
    claim = Statement(
        "UPDATE shop_payment SET status = %s, closed_at = %s"
        " WHERE id = %s AND status = %s AND answer_by > %s",
        [Status.APPROVED, stored, payment.pk, Status.STARTED, stored],
        if_unchanged=InvalidTransition,
    )
    try:
        pay_order(order=payment.order, also=[claim, *also])
    except InvalidTransition:
        unpaid = Payment.objects.filter(pk=payment.pk).exclude(status__in=Payment.PAID)
        unpaid.update(status=Status.REFUNDED, closed_at=now)
        return False
    return True


def _decline(payment: Payment) -> None:
    now = timezone.now()
    waiting = Payment.objects.filter(pk=payment.pk, status=Status.STARTED, answer_by__gt=now)
    waiting.update(status=Status.DECLINED, closed_at=now)
