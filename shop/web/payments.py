"""Payments: start one, the page on which the customer pays, and the provider's webhook."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.errors import ShopError, wants_json
from shop.orders.service import get_order
from shop.payments.providers import provider
from shop.payments.service import apply_report, ask_provider, get_payment, start_payment
from shop.platform import rate_limits
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import SeeOther
from shop.web.orders import allow_payment, refused

PAYMENT_LIMIT = "20/minute"
"""Starts per order, and views per payment: each is a call of the provider."""


@customer_form
def start(request: CustomerRequest, number: str) -> HttpResponse:
    """Start the payment, or continue an open one: 201 with JSON, or 303 to its page."""
    order = get_order(customer=request.user, number=number)
    try:
        rate_limits.count(PAYMENT_LIMIT, "start", order.number)  # MariaDB ignores case
        url = reverse("payment-page", args=[start_payment(order=order).reference])
    except ShopError as error:
        return refused(request, number, error)
    return JsonResponse({"url": url}, status=201) if wants_json(request) else SeeOther(url)


@customer_page
def page(request: CustomerRequest, reference: str) -> HttpResponse:
    """Let the customer pay; once the provider says that it is decided, go back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    if payment.is_open:
        rate_limits.count(PAYMENT_LIMIT, "payment", payment.reference)
    context = ask_provider(payment=payment).page if payment.is_open else {}
    if not payment.is_open or not payment.order.is_payable:
        return redirect(payment.order)
    context = {**context, "payment": payment, "now": timezone.now()}
    return allow_payment(render(request, provider().template, context))


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> HttpResponse:
    """Receive what the provider reports; its signature replaces session and CSRF token."""
    report = provider().receive(request.body, request.headers)
    if report is None:
        return JsonResponse({"status": "ignored"})
    payment = apply_report(report=report)
    return JsonResponse({"reference": payment.reference, "status": payment.status})
