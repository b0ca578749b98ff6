"""What everybody may see: the sales and the catalogue."""

import random
import uuid
from typing import Any

from django.core.cache import caches
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from inventory import selectors as inventory
from shop.models import Order, Sale
from shop.orders import live_orders
from shop.sales import catalogue, get_product, get_sale, live_sales, past_sales, upcoming_sales
from shop.views.decorators import shows

PAGE = 12
PAST = 6
POLL_MS = (2500, 4500)
STOCKED_FOR = 10
"""Seconds for which a page may show how many pieces there were before a restock."""


@never_cache
@shows
def home(request: HttpRequest) -> HttpResponse:
    """Sales that are live, upcoming and past."""
    now = timezone.now()
    sales = {
        "live": list(live_sales(now=now)),
        "upcoming": list(upcoming_sales(now=now)),
        "past": list(past_sales(now=now)[:PAST]),
    }
    return render(request, "shop/home.html", {**sales, "now": now})


@shows
def products(request: HttpRequest) -> HttpResponse:
    """The catalogue, searched and in pages."""
    # A NUL is no character to PostgreSQL.
    text = request.GET.get("q", "").replace("\0", " ").strip()[:100]
    page = Paginator(catalogue(text=text), PAGE).get_page(request.GET.get("page"))
    return render(request, "shop/products.html", {"page": page, "text": text})


@shows
def product(request: HttpRequest, slug: str) -> HttpResponse:
    """One product and where it is on sale."""
    return render(request, "shop/product.html", {"product": get_product(slug=slug)})


@never_cache
@shows
def sale(request: HttpRequest, slug: str) -> HttpResponse:
    """A sale in whichever state it is, for this customer."""
    return render(request, "shop/sale.html", sale_context(request, get_sale(slug=slug)))


@never_cache
@shows
def sale_stock(request: HttpRequest, slug: str) -> HttpResponse:
    """The stock bar alone, polled; has the page loaded again once the sale is in another phase."""
    sale = get_sale(slug=slug)
    context = stock_context(sale)
    response = render(request, "shop/_stock.html", context)
    if request.GET.get("phase") != context["phase"]:
        response["HX-Refresh"] = "true"
    return response


def stock_context(sale: Sale) -> dict[str, Any]:
    """What the stock bar shows."""
    now = timezone.now()
    cache = caches["optional"]
    initial = cache.get(f"stocked:{sale.stock_id}")
    if initial is None or initial < sale.stock.quantity:
        initial = inventory.stocked(stock_id=sale.stock_id)
        cache.set(f"stocked:{sale.stock_id}", initial, STOCKED_FOR)
    return {
        "sale": sale,
        "phase": sale.phase(now),
        "initial": initial,
        "now": now,
        # Not all at once: whoever loaded the page in the same second asks again in another.
        "poll_ms": random.randint(*POLL_MS),
    }


def sale_context(
    request: HttpRequest, sale: Sale, *, key: str = "", quantity: int = 1
) -> dict[str, Any]:
    """What the sale page shows; `key` and `quantity` are those of a form that may be sent again."""
    mine = live_orders(customer=request.user, sale=sale) if request.user.is_authenticated else []
    pending = [order for order in mine if order.status == Order.Status.PENDING]
    room = sale.limit_per_customer - sum(order.quantity for order in mine)
    return {
        **stock_context(sale),
        "order": next(iter(pending or mine), None),
        "quantities": range(1, min(room, max(1, sale.stock.quantity)) + 1),
        "quantity": quantity,
        "key": key or str(uuid.uuid4()),
    }
