"""Order pages: list, detail and cancellation."""

import uuid
from collections.abc import Callable
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone

from inventory.statements import insert
from locking.exceptions import IdempotencyError, KeyInFlight
from locking.idempotency import Attempt
from locking.models import IdempotencyKey
from shop.errors import InFlight, KeyReused, ShopError, answer, wants_json
from shop.models import Order, Payment
from shop.orders.service import cancel_order, get_order, orders_of
from shop.payments.providers import can_pay, provider
from shop.platform.headers import allow
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
        state = {"status": order.status, "payment": _payment_state(order.payments.first())}
        return JsonResponse({**order.receipt, **state})
    return allow_payment(render(request, "shop/order.html", _order_context(order)))


def _payment_state(payment: Payment | None) -> dict[str, str] | None:
    if payment is None:
        return None
    return {
        "status": payment.outcome,
        "amount": str(payment.amount),
        "currency": payment.currency,
        "answer_by": payment.answer_by.isoformat(timespec="milliseconds"),
    }


@customer_form
def cancel(request: CustomerRequest, number: str) -> HttpResponse:
    """Cancel an unpaid order."""
    return change_order(request, number, cancel_order, Order.Status.CANCELLED)


def change_order(
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
        return refused(request, number, error, key)
    except IdempotencyError as error:
        refusal = InFlight() if isinstance(error, KeyInFlight) else KeyReused()
        return refused(request, number, refusal, key)
    assert attempt.response is not None
    return attempt.response.to_http()


def refused(request: CustomerRequest, number: str, error: ShopError, key: str = "") -> HttpResponse:
    """Return the order page with the refusal; raise the refusal for a client that wants JSON."""
    if wants_json(request):
        raise error
    order = get_order(customer=request.user, number=number)
    context = _order_context(order, key)
    return allow_payment(answer(request, error, page="shop/order.html", context=context))


def allow_payment(response: HttpResponse) -> HttpResponse:
    """Allow the page of an order or a payment what the payment provider needs."""
    return allow(response, provider().sources, provider().features) if can_pay() else response


def _order_context(order: Order, key: str = "") -> dict[str, Any]:
    """Return the context of the order page; `key` is that of a form that may be sent again."""
    payments = list(order.payments.all())
    context = {"order": order, "payments": payments, "payment": next(iter(payments), None)}
    return {**context, "now": timezone.now(), "key": key or str(uuid.uuid4())}
