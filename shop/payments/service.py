"""Pay orders through a payment provider.

The payment provider reports the outcome, which may arrive late, twice or never. In each case a
payment ends in one state, and at most one payment pays an order.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _

from inventory.statements import Statement, as_stored
from locking.failpoints import reach
from shop.errors import BadInput, InvalidTransition, NotFound
from shop.models import Order, Payment, User
from shop.orders.service import pay_order

Status = Payment.Status


def can_pay() -> bool:
    """Return True if the shop has a payment provider."""
    return settings.PAYMENT_PROVIDER not in ("", "none")


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


def get_payment(*, customer: User, reference: str) -> Payment:
    """Return one of the customer's payments; NotFound also for the payments of others."""
    mine = Payment.objects.filter(reference=reference, order__customer=customer)
    payment = mine.select_related("order__sale__product").first()
    if payment is None:
        raise NotFound
    return payment


def report_outcome(*, reference: str, amount: object, approved: object) -> Payment:
    """Apply what the payment provider reports; a repeated report changes nothing.

    Raises NotFound for an unknown payment and BadInput for a wrong amount.
    """
    payment = Payment.objects.filter(reference=reference).first()
    if payment is None:
        raise NotFound
    if type(approved) is not bool or amount != str(payment.amount):
        raise BadInput(_("The amount is not that of the payment."))
    if approved:
        approve(payment)
    else:
        _decline(payment)
    payment.refresh_from_db(fields=["status", "closed_at"])
    return payment


def time_out_payments(*, now: datetime | None = None) -> int:
    """Close payments without a callback in time, and return how many."""
    now = now or timezone.now()
    late = Payment.objects.filter(status=Status.STARTED, answer_by__lte=now)
    return late.update(status=Status.TIMED_OUT, closed_at=now)


def approve(payment: Payment, also: Sequence[Statement] = ()) -> bool:
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
