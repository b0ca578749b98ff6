"""What everybody may see: the sales and the catalogue."""

import random
import re
import uuid
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from inventory import selectors as inventory
from shop import tickets
from shop.forms import read_key
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
    context = {**stock_context(sale), **_kept_fresh(request, sale)}
    response = render(request, "shop/_stock.html", context)
    if request.GET.get("phase") != context["phase"]:
        response["HX-Refresh"] = "true"
    return response


def _kept_fresh(request: HttpRequest, sale: Sale) -> dict[str, Any]:
    """A new ticket for the form on the page that polls, once half the time of its own is over."""
    key, expires = request.GET.get("key", ""), request.GET.get("expires", "")
    if not key or not re.fullmatch(r"[0-9]{1,12}", expires):
        return {}
    key = read_key(key)
    if not tickets.is_due(int(expires)):
        return {"key": key, "expires": expires}
    ticket = _ticket(request, sale, key, _mine(request, sale))
    return {"key": key, "swap": True, **ticket} if ticket else {}


def _mine(request: HttpRequest, sale: Sale) -> list[Order]:
    return live_orders(customer=request.user, sale=sale) if request.user.is_authenticated else []


def _ticket(request: HttpRequest, sale: Sale, key: str, mine: Sequence[Order]) -> dict[str, Any]:
    """For a customer who has signed in."""
    if not request.user.is_authenticated:
        return {}
    ticket, expires = tickets.issue(
        customer_id=request.user.pk,
        sale_id=sale.pk,
        key=key,
        session=request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""),
        is_first=not mine,
    )
    return {"ticket": ticket, "expires": expires}


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
    mine = _mine(request, sale)
    pending = [order for order in mine if order.status == Order.Status.PENDING]
    room = sale.limit_per_customer - sum(order.quantity for order in mine)
    key = key or str(uuid.uuid4())
    return {
        **stock_context(sale),
        **_ticket(request, sale, key, mine),
        "order": next(iter(pending or mine), None),
        "quantities": range(1, min(room, max(1, sale.stock.quantity)) + 1),
        "quantity": quantity,
        "key": key,
    }
