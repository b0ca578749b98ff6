"""What customers do: buy, pay, cancel, and look at their orders."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from inventory.batch import insert
from locking import Attempt, IdempotencyError
from locking.models import IdempotencyKey
from shop.catalogue.page_cache import read_sale
from shop.errors import ShopError, answer, refusal_of, wants_json
from shop.models import Order
from shop.orders.service import cancel_order, get_order, orders_of
from shop.payments.service import last_payment, pay_at_once, start_payment
from shop.platform import rate_limits as throttle
from shop.purchase import buying
from shop.purchase.admission import sale_at_door
from shop.purchase.place_order import is_late
from shop.web.decorators import CustomerRequest, acts, shows_own
from shop.web.forms import key_of, read_purchase
from shop.web.pages import sale_context

PAGE = 20


class SeeOther(HttpResponseRedirect):
    """After a form: go there, with GET."""

    status_code = 303


@never_cache
@acts
def buy(request: CustomerRequest, slug: str) -> HttpResponse:
    """Buy: 201 with JSON, or 303 to the order's page."""
    if "shop.counted" not in request.META:  # by the turnstile
        throttle.count(settings.BUY_LIMIT, "buy", str(request.user.pk))
    sale = sale_at_door(slug=slug)
    purchase = read_purchase(request, most=sale.limit_per_customer)
    began = request.META.get("shop.began", time.monotonic())  # the turnstile says so
    try:
        outcome = buying.buy(
            customer_id=request.user.pk,
            sale=sale,
            quantity=purchase.quantity,
            key=purchase.key,
            began=began,
        )
    except ShopError as error:
        if wants_json(request) or is_late(began):
            raise
        seen = read_sale(slug=slug)  # as it is now, not as it was at the door
        context = sale_context(request, seen, key=purchase.key, quantity=purchase.quantity)
        return answer(request, error, page="shop/sale.html", context=context)
    if wants_json(request):
        headers = {"Location": outcome.url}
        return JsonResponse(outcome.receipt, status=outcome.status, headers=headers)
    return SeeOther(outcome.url)


@never_cache
@shows_own
def orders(request: CustomerRequest) -> HttpResponse:
    """The customer's own orders."""
    page = Paginator(orders_of(customer=request.user), PAGE).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page})


@never_cache
@shows_own
def order(request: CustomerRequest, number: str) -> HttpResponse:
    """One order of the customer's."""
    order = get_order(customer=request.user, number=number)
    if wants_json(request):
        return _json_of(order, order.status)
    return render(request, "shop/order.html", _page_of(order))


@never_cache
@acts
def pay(request: CustomerRequest, number: str) -> HttpResponse:
    """Pay at once: the stand-in for a payment service says yes without asking the customer."""
    return _step(request, number, pay_at_once, Order.Status.PAID)


@never_cache
@acts
def payment(request: CustomerRequest, number: str) -> HttpResponse:
    """Go to the payment service: 201 with JSON, or 303 to its page. Again leads to the same."""
    order = get_order(customer=request.user, number=number)
    try:
        there = start_payment(order=order).get_absolute_url()
    except ShopError as error:
        return _refused(request, number, error)
    return JsonResponse({"url": there}, status=201) if wants_json(request) else SeeOther(there)


@never_cache
@acts
def cancel(request: CustomerRequest, number: str) -> HttpResponse:
    """Give an unpaid order up."""
    return _step(request, number, cancel_order, Order.Status.CANCELLED)


def _step(
    request: CustomerRequest, number: str, service: Callable[..., None], then: str
) -> HttpResponse:
    """Take a step once for each key; its answer is written together with it."""
    order = get_order(customer=request.user, number=number)
    key = key_of(request)
    response = _json_of(order, then) if wants_json(request) else SeeOther(order.get_absolute_url())
    try:
        with Attempt(user=request.user.pk, key=key, request=request.path.encode()) as attempt:
            if attempt.answer is None:
                answered = insert(IdempotencyKey, **attempt.row(response))
                service(order=order, also=[answered])
    except (ShopError, IdempotencyError) as failed:
        error = refusal_of(failed) if isinstance(failed, IdempotencyError) else failed
        return _refused(request, number, error, key)
    assert attempt.answer is not None
    return attempt.answer.response()


def _refused(
    request: CustomerRequest, number: str, error: ShopError, key: str = ""
) -> HttpResponse:
    if wants_json(request):
        raise error
    order = get_order(customer=request.user, number=number)
    return answer(request, error, page="shop/order.html", context=_page_of(order, key))


def _json_of(order: Order, status: str) -> HttpResponse:
    return JsonResponse({**order.receipt, "status": status})


def _page_of(order: Order, key: str = "") -> dict[str, Any]:
    """What the order page shows; `key` is that of a form that may be sent again."""
    context = {"order": order, "payment": last_payment(order=order), "now": timezone.now()}
    return {**context, "key": key or str(uuid.uuid4())}
