"""A simulated payment provider, its URLs and page: the customer chooses its outcome.

It moves no money. A real payment provider would POST its webhooks to /payments/webhook/. This one
reports to the function behind that URL.
"""

from collections.abc import Mapping, Sequence

from django.http import HttpResponse
from django.urls import path
from django.utils.translation import gettext as _

from inventory.money import minor_units
from inventory.statements import Statement
from shop.errors import BadInput, Forgery, InvalidTransition
from shop.models import Order, Payment
from shop.payments.providers import Provider, Report, State
from shop.payments.service import apply_report, approve, get_payment, start_payment
from shop.web.decorators import CustomerRequest, customer_form
from shop.web.forms import SeeOther
from shop.web.orders import change_order

WEBHOOKS = {"approve": 1, "decline": 1, "silent": 0, "twice": 2}
"""By choice of the customer: the number of webhooks that follow."""


class Simulated(Provider):
    """Leaves each payment open until the customer chooses, and refunds at once."""

    template = "lab/gateway.html"

    def start(self, payment: Payment) -> str:
        """Return the reference."""
        return payment.reference

    def report(self, payment: Payment) -> Report:
        """Return that the customer has not chosen yet."""
        return _report(payment, State.OPEN)

    def close(self, payment: Payment) -> Report:
        """Return that the customer did not choose in time."""
        return _report(payment, State.CLOSED)

    def refund(self, payment: Payment) -> bool:
        """Return True."""
        return True

    def receive(self, body: bytes, headers: Mapping[str, str]) -> Report:
        """Raise Forgery: the simulated provider sends no webhooks."""
        raise Forgery


def report_outcome(*, payment: Payment, approved: bool) -> Payment:
    """Report the outcome of a payment as a webhook does; a repeated one changes nothing."""
    return apply_report(report=_report(payment, State.PAID if approved else State.CLOSED))


def pay_at_once(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Pay an order without asking the customer, and write `also` in the same transaction.

    Raises InvalidTransition unless the order is payable.
    """
    if not approve(start_payment(order=order), also):
        raise InvalidTransition


def _report(payment: Payment, state: State) -> Report:
    amount = minor_units(payment.amount, payment.currency)
    return Report(
        reference=payment.reference, state=state, amount=amount, currency=payment.currency
    )


@customer_form
def pay(request: CustomerRequest, number: str) -> HttpResponse:
    """Pay at once: the payment provider approves without asking the customer."""
    return change_order(request, number, pay_at_once, Order.Status.PAID)


@customer_form
def decide(request: CustomerRequest, reference: str) -> HttpResponse:
    """Send the webhooks of the chosen outcome, then send the customer back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    choice = request.POST.get("choice", "")
    if choice not in WEBHOOKS:
        raise BadInput(_("Choose an outcome of the payment."))
    for _number in range(WEBHOOKS[choice]):
        report_outcome(payment=payment, approved=choice != "decline")
    return SeeOther(payment.order.get_absolute_url())


urlpatterns = [
    path("orders/<slug:number>/pay/", pay, name="pay"),
    path("payments/<slug:reference>/answer/", decide, name="gateway-answer"),
]
