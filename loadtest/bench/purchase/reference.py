"""A purchase as most tutorials write it, on the shop's models: correct, and slow under load.

One server serves it beside the shop.
"""

from typing import cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db.transaction import atomic
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import timezone
from django.views.decorators.http import require_POST
from redis import Redis
from redis.exceptions import LockError

from inventory.models import Stock
from shop.models import Order, Sale, User
from shop.urls import handler400, handler403, handler404, handler500
from shop.urls import urlpatterns as shop_urls

__all__ = ["handler400", "handler403", "handler404", "handler500"]

LEASE = 10
"""Seconds until the lock expires, and for which a request waits for it."""

redis = Redis.from_url(settings.REDIS_URL)


@require_POST
@login_required
def buy(request: HttpRequest, slug: str) -> HttpResponse:
    """Buy with redis-py's Lock around get, compare, save and create."""
    quantity = int(request.POST["quantity"])
    sale = get_object_or_404(Sale, slug=slug)
    try:
        # The transaction inside the lock: the next holder reads what this one committed.
        with redis.lock(f"stock:{sale.pk}", timeout=LEASE, blocking_timeout=LEASE), atomic():
            stock = Stock.objects.get(pk=sale.stock_id)
            if stock.quantity < quantity:
                return JsonResponse({"error": "sold_out"}, status=409)
            stock.quantity -= quantity
            stock.save()
            order = Order.objects.create(
                customer=cast(User, request.user),
                sale=sale,
                quantity=quantity,
                unit_price=sale.price,
                key=request.POST["idempotency_key"],
                pay_by=timezone.now(),
            )
    except LockError:
        return JsonResponse({"error": "busy"}, status=503)
    return JsonResponse({"number": order.number}, status=201)


def empty(request: HttpRequest) -> HttpResponse:
    """Return nothing: the cost of the middleware for the same form, including the CSRF check."""
    return HttpResponse()


urlpatterns = [path("reference/<slug:slug>/buy/", buy), path("empty/", empty), *shop_urls]
