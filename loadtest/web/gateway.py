"""A simulated payment provider, its URLs and pages: the customer chooses its outcome.

It moves no money. A real payment provider would POST its callbacks to /payments/callback/. This one
passes the same body and signature to the function behind that URL.
"""

import hmac
import json
from collections.abc import Iterator, Sequence

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from inventory.statements import Statement
from shop.errors import BadInput, Forgery, InvalidTransition, ShopError, wants_json
from shop.models import Order, Payment
from shop.orders.service import get_order
from shop.payments.service import approve, get_payment, report_outcome, start_payment
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import SeeOther
from shop.web.orders import change_order, refused

CHOICES = ("approve", "decline", "silent", "twice")

Callback = tuple[bytes, str]
"""A body and its signature."""


def callbacks(*, payment: Payment, choice: str) -> Iterator[Callback]:
    """Yield the callbacks that follow the customer's choice, one of CHOICES; none when silent."""
    for _number in range({"silent": 0, "twice": 2}.get(choice, 1)):
        yield callback(payment=payment, approved=choice != "decline")


def callback(*, payment: Payment, approved: bool) -> Callback:
    """Return a signed callback."""
    fields = {"reference": payment.reference, "amount": str(payment.amount), "approved": approved}
    body = json.dumps(fields).encode()
    return body, _sign(body)


def receive(body: bytes, signature: str) -> Payment:
    """Apply a callback; a repeated one changes nothing.

    Raises Forgery for a wrong signature, BadInput for a malformed body or a wrong amount, and
    NotFound for an unknown payment.
    """
    if not hmac.compare_digest(_sign(body).encode(), signature.encode()):
        raise Forgery
    try:
        fields = json.loads(body)
        reference, amount, approved = (fields[name] for name in ("reference", "amount", "approved"))
    except (ValueError, LookupError, TypeError):
        raise BadInput(_("The body is not JSON.")) from None
    return report_outcome(reference=str(reference), amount=amount, approved=approved)


def pay_at_once(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Pay an order without asking the customer, and write `also` in the same transaction.

    Raises InvalidTransition unless the order is payable.
    """
    if not approve(start_payment(order=order), also):
        raise InvalidTransition


def _sign(body: bytes) -> str:
    return salted_hmac("loadtest.web.gateway", body, algorithm="sha256").hexdigest()


@customer_form
def pay(request: CustomerRequest, number: str) -> HttpResponse:
    """Pay at once: the payment provider approves without asking the customer."""
    return change_order(request, number, pay_at_once, Order.Status.PAID)


@customer_form
def start(request: CustomerRequest, number: str) -> HttpResponse:
    """Start the payment, or continue an open one: 201 with JSON, or 303 to the payment provider."""
    order = get_order(customer=request.user, number=number)
    try:
        url = reverse("gateway", args=[start_payment(order=order).reference])
    except ShopError as error:
        return refused(request, number, error)
    return JsonResponse({"url": url}, status=201) if wants_json(request) else SeeOther(url)


@customer_page
def page(request: CustomerRequest, reference: str) -> HttpResponse:
    """Let the customer choose the outcome of the payment; once decided, go back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    if not payment.is_open:
        return redirect(payment.order)
    return render(request, "lab/gateway.html", {"payment": payment, "now": timezone.now()})


@customer_form
def decide(request: CustomerRequest, reference: str) -> HttpResponse:
    """Send the callbacks of the chosen outcome, then send the customer back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    choice = request.POST.get("choice", "")
    if choice not in CHOICES:
        raise BadInput(_("Choose an outcome of the payment."))
    for body, signature in callbacks(payment=payment, choice=choice):
        receive(body, signature)
    return SeeOther(payment.order.get_absolute_url())


@csrf_exempt
@require_POST
def called_back(request: HttpRequest) -> HttpResponse:
    """Receive a callback; its signature is in X-Gateway-Signature."""
    payment = receive(request.body, request.headers.get("X-Gateway-Signature", ""))
    return JsonResponse({"reference": payment.reference, "status": payment.status})


urlpatterns = [
    path("orders/<slug:number>/pay/", pay, name="pay"),
    path("orders/<slug:number>/payment/", start, name="payment"),
    path("gateway/<slug:reference>/", page, name="gateway"),
    path("gateway/<slug:reference>/answer/", decide, name="gateway-answer"),
    path("payments/callback/", called_back, name="payment-callback"),
]
