"""What customers do: buy, pay, cancel, and look at their orders."""

from collections.abc import Callable

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from shop import buying, throttle
from shop.admission import sale_at_door
from shop.errors import ShopError, answer, wants_json
from shop.forms import read_purchase
from shop.models import Order
from shop.orders import cancel_order, get_order, orders_of, pay_order
from shop.shared import read_sale
from shop.views.decorators import CustomerRequest, acts, shows_own
from shop.views.pages import sale_context

PAGE = 20


class SeeOther(HttpResponseRedirect):
    """After a form: go there, with GET."""

    status_code = 303


@never_cache
@acts
def buy(request: CustomerRequest, slug: str) -> HttpResponse:
    """Buy: 201 with JSON, or 303 to the order's page."""
    throttle.count(settings.BUY_LIMIT, "buy", str(request.user.pk))
    sale = sale_at_door(slug=slug)
    purchase = read_purchase(request, most=sale.limit_per_customer)
    try:
        outcome = buying.buy(
            customer_id=request.user.pk, sale=sale, quantity=purchase.quantity, key=purchase.key
        )
    except ShopError as error:
        if wants_json(request):
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
    return _order_page(request, get_order(customer=request.user, number=number))


@never_cache
@acts
def pay(request: CustomerRequest, number: str) -> HttpResponse:
    """Pay an order; the till is a stand-in that always says yes."""
    return _step(request, number, pay_order)


@never_cache
@acts
def cancel(request: CustomerRequest, number: str) -> HttpResponse:
    """Give an unpaid order up."""
    return _step(request, number, cancel_order)


def _step(request: CustomerRequest, number: str, service: Callable[..., None]) -> HttpResponse:
    order = get_order(customer=request.user, number=number)
    try:
        service(order=order)
    except ShopError as error:
        if wants_json(request):
            raise
        order = get_order(customer=request.user, number=number)
        context = {"order": order, "now": timezone.now()}
        return answer(request, error, page="shop/order.html", context=context)
    if wants_json(request):
        return _order_page(request, order)
    return SeeOther(order.get_absolute_url())


def _order_page(request: CustomerRequest, order: Order) -> HttpResponse:
    if wants_json(request):
        return JsonResponse({**order.receipt, "status": order.status})
    return render(request, "shop/order.html", {"order": order, "now": timezone.now()})
