"""Order pages: list, detail, payment and cancellation; the stand-in payment provider's page."""

import uuid
from collections.abc import Callable
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from inventory.statements import insert
from locking import Attempt, IdempotencyError, KeyInFlight
from locking.models import IdempotencyKey
from shop.errors import BadInput, InFlight, KeyReused, ShopError, answer, wants_json
from shop.models import Order
from shop.orders.service import cancel_order, get_order, orders_of
from shop.payments import gateway
from shop.payments.service import get_payment, pay_at_once, receive, start_payment
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import SeeOther, key_of

PAGE_SIZE = 20


@customer_page
def orders(request: CustomerRequest) -> HttpResponse:
    """List the customer's own orders."""
    page = Paginator(orders_of(customer=request.user), PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page})


@customer_page
def order(request: CustomerRequest, number: str) -> HttpResponse:
    """Show one of the customer's own orders."""
    order = get_order(customer=request.user, number=number)
    if wants_json(request):
        return JsonResponse({**order.receipt, "status": order.status})
    return render(request, "shop/order.html", _order_context(order))


@customer_form
def pay(request: CustomerRequest, number: str) -> HttpResponse:
    """Pay at once: the stand-in payment provider approves without asking the customer."""
    return _change_order(request, number, pay_at_once, Order.Status.PAID)


@customer_form
def payment(request: CustomerRequest, number: str) -> HttpResponse:
    """Start the payment, or continue an open one: 201 with JSON, or 303 to the payment provider."""
    order = get_order(customer=request.user, number=number)
    try:
        url = start_payment(order=order).get_absolute_url()
    except ShopError as error:
        return _refused(request, number, error)
    return JsonResponse({"url": url}, status=201) if wants_json(request) else SeeOther(url)


@customer_form
def cancel(request: CustomerRequest, number: str) -> HttpResponse:
    """Cancel an unpaid order."""
    return _change_order(request, number, cancel_order, Order.Status.CANCELLED)


def _change_order(
    request: CustomerRequest, number: str, service: Callable[..., None], status: str
) -> HttpResponse:
    """Change the order once per idempotency key; the response is stored with the change."""
    order = get_order(customer=request.user, number=number)
    key = key_of(request)
    if wants_json(request):
        response: HttpResponse = JsonResponse({**order.receipt, "status": status})
    else:
        response = SeeOther(order.get_absolute_url())
    try:
        with Attempt(user=request.user.pk, key=key, request=request.path.encode()) as attempt:
            if attempt.response is None:
                stored = insert(IdempotencyKey, **attempt.row(response))
                service(order=order, also=[stored])
    except ShopError as error:
        return _refused(request, number, error, key)
    except IdempotencyError as error:
        refusal = InFlight() if isinstance(error, KeyInFlight) else KeyReused()
        return _refused(request, number, refusal, key)
    assert attempt.response is not None
    return attempt.response.to_http()


def _refused(
    request: CustomerRequest, number: str, error: ShopError, key: str = ""
) -> HttpResponse:
    if wants_json(request):
        raise error
    order = get_order(customer=request.user, number=number)
    return answer(request, error, page="shop/order.html", context=_order_context(order, key))


def _order_context(order: Order, key: str = "") -> dict[str, Any]:
    """Return the context of the order page; `key` is that of a form that may be sent again."""
    context = {"order": order, "payment": order.payments.first(), "now": timezone.now()}
    return {**context, "key": key or str(uuid.uuid4())}


@customer_page
def gateway_page(request: CustomerRequest, reference: str) -> HttpResponse:
    """Let the customer choose the outcome of the payment; once decided, go back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    if not payment.is_open:
        return redirect(payment.order)
    return render(request, "shop/gateway.html", {"payment": payment, "now": timezone.now()})


@customer_form
def gateway_decision(request: CustomerRequest, reference: str) -> HttpResponse:
    """Send the callbacks of the chosen outcome, then send the customer back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    choice = request.POST.get("choice", "")
    if choice not in gateway.CHOICES:
        raise BadInput(_("Choose an outcome of the payment."))
    for body, signature in gateway.callbacks(payment=payment, choice=choice):
        receive(body, signature)
    return SeeOther(payment.order.get_absolute_url())


@csrf_exempt
@require_POST
def payment_callback(request: HttpRequest) -> HttpResponse:
    """Receive a payment provider's callback; its signature is in X-Gateway-Signature."""
    payment = receive(request.body, request.headers.get("X-Gateway-Signature", ""))
    return JsonResponse({"reference": payment.reference, "status": payment.status})
