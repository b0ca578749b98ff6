"""Pay orders through a payment provider.

The provider reports the outcome, which may arrive late, twice or never. In each case a payment ends
in one state, at most one payment pays an order, and money for an order that can no longer be paid
is refunded.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from inventory.money import minor_units
from inventory.statements import Statement, as_stored, insert
from locking.failpoints import reach
from shop.errors import BadInput, InvalidTransition, NotFound, ShopError
from shop.models import DeliveryAddress, Order, Payment, User
from shop.orders import service as orders
from shop.orders.addresses import address_of
from shop.payments.providers import (
    ProviderRefusal,
    ProviderUnavailable,
    Report,
    State,
    can_pay,
    provider,
)
from shop.platform.metrics import PAYMENT_MISMATCHES

logger = logging.getLogger("shop")

Status = Payment.Status
LAST_ANSWER = timedelta(seconds=60)
"""How long before the end of the time to pay the provider is asked; at most half of the rest."""
TASK_SECONDS, BATCH = 4, 2000
"""Time and number of payments after which a task leaves the others to its next run."""
CLAIM_REFUND = """
    UPDATE shop_payment SET status = %s, refund_started_at = %s
    WHERE order_id = %s AND status = %s AND NOT EXISTS (
        SELECT 1 FROM shop_deliveryaddress, shop_sale WHERE shop_deliveryaddress.order_id = %s
        AND shipped_at IS NOT NULL AND shop_sale.id = %s AND closes_at > %s
    )
"""
NOT_RETURNABLE = _("It was shipped or refunded, or its sale has ended. Please contact the shop.")


class UnitsShipped(ShopError):
    """The order is shipped, and its sale would sell the returned units again."""

    code = "shipped"
    title = _("It is shipped: a refund now would sell its units again. Refund it after the sale.")


def start_payment(*, order: Order) -> Payment:
    """Return the open payment of an order, or a new one.

    Raises InvalidTransition unless the order is payable, and ProviderUnavailable.
    """
    if not order.is_payable:
        raise InvalidTransition
    payment = order.payments.first()
    if payment is None or not payment.is_open:
        now = timezone.now()
        deadline = now + timedelta(seconds=settings.PAYMENT_TIMEOUT_SECONDS)
        # The provider is asked while its answer can still pay the order.
        last = order.pay_by - min(LAST_ANSWER, (order.pay_by - now) / 2)
        payment = Payment(answer_by=min(deadline, last), **_price_of(order))
        payment.provider_id = provider().start(payment)
        payment.save()
    return payment


def _price_of(order: Order) -> dict[str, Any]:
    """Return the fields of a payment that follow from its order."""
    currency = order.currency or settings.CURRENCY
    return {"order": order, "amount": order.total, "currency": currency}


def get_payment(*, customer: User, reference: str) -> Payment:
    """Return one of the customer's payments; NotFound also for the payments of others."""
    mine = Payment.objects.filter(reference=reference, order__customer=customer)
    payment = mine.select_related("order__sale__product").first()
    if payment is None:
        raise NotFound
    return payment


def ask_provider(*, payment: Payment) -> Report:
    """Apply what the provider says about a payment, and return it."""
    report = provider().report(payment)
    apply_report(report=report)
    payment.refresh_from_db(fields=["status", "closed_at"])
    return report


def apply_report(*, report: Report) -> Payment:
    """Apply what the payment provider reports; a repeated report changes nothing.

    Raises NotFound for an unknown payment and BadInput for a wrong amount or currency.
    """
    payment = Payment.objects.select_related("order").filter(reference=report.reference).first()
    if payment is None:
        logger.error("Payment %s was reported, but does not exist", report.reference)
        raise NotFound
    expected = minor_units(payment.amount, payment.currency), payment.currency
    if report.state != State.OPEN and (report.amount, report.currency) != expected:
        PAYMENT_MISMATCHES.inc()
        logger.error("Payment %s is of %s, not of %s", payment, report, expected)
        raise BadInput(_("The amount is not that of the payment."))
    if report.state == State.PAID:
        approve(payment)
    elif report.state == State.CLOSED:
        _end(payment, Status.DECLINED)
    payment.refresh_from_db(fields=["status", "closed_at"])
    return payment


def time_out_payments() -> int:
    """Close payments without a webhook in time and those of closed orders; return how many.

    The provider is asked first: a payment of which it did not report is approved or refunded.
    """
    running = {"order__status": Order.Status.PENDING, "answer_by__gt": timezone.now()}
    return _each(Payment.objects.filter(status=Status.STARTED).exclude(**running), _time_out)


def refund_payments() -> int:
    """Ask the provider for every refund that it has not confirmed; return how many are done."""
    return _each(Payment.objects.filter(status=Status.REFUNDING), _refund)


def is_returnable(*, order: Order, address: DeliveryAddress | None) -> bool:
    """Return True if its customer may return it: paid online, not shipped, during its sale."""
    is_shipped = bool(address and address.shipped_at)
    is_on_sale = timezone.now() < order.sale.closes_at  # afterwards the units could not be sold
    if not can_pay() or order.status != Order.Status.PAID or is_shipped or not is_on_sale:
        return False
    return not order.payments.filter(status=Status.APPROVED, provider_id="").exists()


def return_order(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Refund an order for its customer. Raise InvalidTransition unless it is returnable."""
    if not is_returnable(order=order, address=address_of(order=order)):
        raise InvalidTransition(NOT_RETURNABLE)
    try:
        refund_order(order=order, also=also)
    except UnitsShipped as error:
        raise InvalidTransition(NOT_RETURNABLE) from error


def refund_order(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Cancel a paid order, release its units, refund its payment and write `also`.

    Raises InvalidTransition unless a payment paid the order, UnitsShipped if the order is shipped
    and its sale has not ended, and the errors of `cancel_order`.
    """
    now = timezone.now()
    stored = as_stored(Payment, "refund_started_at", now)
    values = [Status.REFUNDING, stored, order.pk, Status.APPROVED, order.pk, order.sale_id, stored]

    def reason() -> ShopError:
        return refund_refusal(order=order) or InvalidTransition()

    claim = Statement(CLAIM_REFUND, values, if_unchanged=reason)
    orders.refund_order(order=order, also=[claim, *also])


def refund_refusal(*, order: Order) -> ShopError | None:
    """Return why an order cannot be refunded now; None if it can."""
    shipped = DeliveryAddress.objects.filter(order=order, shipped_at__isnull=False)
    if shipped.filter(order__sale__closes_at__gt=timezone.now()).exists():
        return UnitsShipped()
    is_paid = order.payments.filter(status=Status.APPROVED).exists()
    return None if is_paid else InvalidTransition()


def refuse_refund(*, order: Order) -> None:
    """Raise the refusal of a refund, also if the order could be refunded by now."""
    raise refund_refusal(order=order) or InvalidTransition


def oldest_refund_seconds() -> float:
    """Return for how many seconds the oldest refund has waited for the provider."""
    waiting = Payment.objects.filter(status=Status.REFUNDING).order_by("refund_started_at")
    started_at = waiting.values_list("refund_started_at", flat=True).first()
    return (timezone.now() - started_at).total_seconds() if started_at else 0.0


def approve(payment: Payment, also: Sequence[Statement] = ()) -> bool:
    """Pay the order, or refund the payment if the order can no longer be paid.

    Return True if this call paid the order; otherwise `also` was not written, even if an earlier
    call approved the payment.
    """
    reach("payment.approve")
    now = timezone.now()
    claim = Statement(
        "UPDATE shop_payment SET status = %s, closed_at = %s"
        " WHERE id = %s AND status IN (%s, %s, %s)",
        [Status.APPROVED, as_stored(Payment, "closed_at", now), payment.pk, *Payment.UNPAID],
        if_unchanged=InvalidTransition,
    )
    try:
        orders.pay_order(order=payment.order, also=[claim, *also])
    except InvalidTransition:
        unpaid = Payment.objects.filter(pk=payment.pk, status__in=Payment.UNPAID)
        unpaid.update(status=Status.REFUNDING, closed_at=now, refund_started_at=now)
        return False
    return True


def _end(payment: Payment, status: Status) -> int:
    waiting = Payment.objects.filter(pk=payment.pk, status=Status.STARTED)
    return waiting.update(status=status, closed_at=timezone.now())


def mark_paid(*, order: Order) -> None:
    """Record an approved payment without a provider's id: staff have the money, and return it.

    Raises InvalidTransition if a payment provider decides that, and the errors of `pay_order`.
    """
    if can_pay():
        raise InvalidTransition
    now, given = timezone.now(), _price_of(order)
    given |= {"status": Status.APPROVED, "created_at": now, "answer_by": now, "closed_at": now}
    payment, fields = Payment(**given), Payment._meta.concrete_fields
    values = {one.attname: getattr(payment, one.attname) for one in fields if not one.primary_key}
    orders.pay_order(order=order, also=[insert(Payment, **values)])


def _time_out(payment: Payment) -> int:
    try:
        report = provider().close(payment)
        if report.state == State.OPEN:  # its bank is still deciding
            return 0
        if report.state == State.PAID:
            apply_report(report=report)
            return 1
    except (BadInput, NotFound) as error:
        logger.error("Payment %s ends without its provider: %r", payment, error)
    return _end(payment, Status.TIMED_OUT)


def _refund(payment: Payment) -> int:
    if payment.provider_id and not provider().refund(payment):
        return 0
    refunding = Payment.objects.filter(pk=payment.pk, status=Status.REFUNDING)
    return refunding.update(status=Status.REFUNDED, refunded_at=timezone.now())


def _each(payments: QuerySet[Payment], step: Callable[[Payment], int]) -> int:
    """Take a step with each payment; one that the provider refuses is passed over.

    In random order, so that payments that stay, run after run, do not delay the others.
    """
    done, until = 0, time.monotonic() + TASK_SECONDS
    waiting = payments if can_pay() else payments.filter(provider_id="")
    for payment in waiting.order_by("?")[:BATCH]:
        if time.monotonic() > until:
            break
        try:
            done += step(payment)
        except (ProviderRefusal, NotFound) as error:
            logger.error("Payment %s: %r", payment, error)
        except ProviderUnavailable:
            break
        except ShopError as error:
            logger.warning("Payment %s: %r", payment, error)
    return done
