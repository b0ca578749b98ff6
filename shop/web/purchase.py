"""The purchase view, for customers identified by their session."""

import time

from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache

from shop.catalogue.page_cache import read_sale
from shop.errors import ShopError, answer, wants_json
from shop.platform import rate_limits
from shop.platform.deadline import is_late
from shop.purchase import service
from shop.purchase.admission import cached_sale
from shop.web.decorators import CustomerRequest, customer_form
from shop.web.forms import SeeOther, read_purchase
from shop.web.pages import sale_context


@never_cache
@customer_form
def buy(request: CustomerRequest, slug: str) -> HttpResponse:
    """Buy: 201 or 202 with JSON, or 303 to the page of the order or the reservation."""
    if "shop.is_counted" not in request.META:  # the fast path may have counted this request
        rate_limits.count(settings.BUY_LIMIT, "buy", str(request.user.pk))
    sale = cached_sale(slug=slug)
    purchase = read_purchase(request, most=sale.limit_per_customer)
    began = request.META.get("shop.started_at", time.monotonic())  # set by the fast path
    try:
        outcome = service.buy(
            customer_id=request.user.pk,
            sale=sale,
            quantity=purchase.quantity,
            key=purchase.key,
            began=began,
        )
    except ShopError as error:
        if wants_json(request) or is_late(began):
            raise
        seen = read_sale(slug=slug)  # the current state: the cached sale may be older
        context = sale_context(request, seen, key=purchase.key, quantity=purchase.quantity)
        return answer(request, error, page="shop/sale.html", context=context)
    if wants_json(request):
        headers = {"Location": outcome.url}
        return JsonResponse(outcome.receipt, status=outcome.status, headers=headers)
    return SeeOther(outcome.url)
