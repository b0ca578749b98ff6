"""Public pages: home, the catalogue and the sale page."""

import random
import re
import uuid
from typing import Any
from zlib import crc32

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from shop.catalogue.page_cache import (
    SaleSnapshot,
    get_cached_home,
    get_cached_product,
    get_cached_products,
    get_cached_sale,
)
from shop.errors import STORE_ERRORS
from shop.models import Order, Sale
from shop.orders.service import live_orders
from shop.purchase import tokens
from shop.purchase.admission import gate_page
from shop.web.decorators import live_page, public_page
from shop.web.forms import TOKEN, read_key

POLL_MS = (2500, 4500)
"""Shortest and longest pause between two polls of the stock bar, in milliseconds."""


@live_page
def home(request: HttpRequest) -> HttpResponse:
    """Show the live, upcoming and past sales."""
    return render(request, "shop/home.html", _home_context())


@live_page
def home_live(request: HttpRequest) -> HttpResponse:
    """Render the states of all cards, for the poll of the home page.

    When sales have opened, ended or been added since that page was rendered, render all its cards.
    """
    context = _home_context()
    if request.GET.get("layout") != context["layout"]:
        return render(request, "shop/_sales.html", context)
    response = render(request, "shop/_states.html", context)
    response["HX-Reswap"] = "none"  # each state replaces that of its card
    return response


def _home_context() -> dict[str, Any]:
    groups = get_cached_home()
    slugs = "|".join(",".join(sale.slug for sale in sales) for sales in groups.values())
    return {**groups, "layout": f"{crc32(slugs.encode()):x}", "now": timezone.now()}


@public_page
def products(request: HttpRequest) -> HttpResponse:
    """Show a page of the catalogue or of a search; unknown choices are ignored."""
    # PostgreSQL accepts no NUL in a text.
    text = request.GET.get("q", "").replace("\0", " ").strip()[:100]
    choice = {name: request.GET.get(name, "") for name in ("show", "price", "sort")}
    page = get_cached_products(number=request.GET.get("page", "1"), text=text, **choice)
    return render(request, "shop/products.html", {"page": page, "text": text, **choice})


@public_page
def product(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a product and its sales."""
    return render(request, "shop/product.html", {"product": get_cached_product(slug=slug)})


@live_page
def sale(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a sale in its current phase, for this customer."""
    return render(request, "shop/sale.html", sale_context(request, get_cached_sale(slug=slug)))


@live_page
def sale_stock(request: HttpRequest, slug: str) -> HttpResponse:
    """Render the stock bar, which the page polls; reload a page of another phase or price.

    At the opening the page is not reloaded, which would load the server: shop.js enables the form.
    """
    seen = get_cached_sale(slug=slug)
    context = {**stock_context(seen), **_renewed_token(request, seen.sale)}
    response = render(request, "shop/_stock.html", context)
    change = request.GET.get("phase"), context["phase"]
    is_repriced = request.GET.get("price", str(seen.sale.price)) != str(seen.sale.price)
    if is_repriced or (change[0] != change[1] and change != (Sale.Phase.BEFORE, Sale.Phase.OPEN)):
        response["HX-Refresh"] = "true"
    return response


def _renewed_token(request: HttpRequest, sale: Sale) -> dict[str, Any]:
    """Return a new token for the polling page's form once half of its token's time is over."""
    key, expires = request.GET.get("key", ""), request.GET.get("expires", "")
    if not key or not re.fullmatch(r"[0-9]{1,12}", expires):
        return {}
    key = read_key(key)
    if not tokens.is_due(int(expires)):
        return {"key": key, "expires": expires}
    token = purchase_token(request, sale, key, is_first=not _orders(request, sale))
    return {"key": key, "swap": True, **token} if token else {}


def _room_url(request: HttpRequest, sale: Sale) -> str | None:
    """Return the URL of the page that this visitor has to pass before the form, or None.

    While the database is unavailable, the page stays; the purchase asks again.
    """
    try:
        return gate_page(sale=sale, customer_id=request.user.pk)
    except STORE_ERRORS:
        return None


def _orders(request: HttpRequest, sale: Sale) -> list[Order]:
    return live_orders(customer=request.user, sale=sale) if request.user.is_authenticated else []


def purchase_token(request: HttpRequest, sale: Sale, key: str, *, is_first: bool) -> dict[str, str]:
    """Return the context of the purchase token of a signed-in customer's form."""
    if not request.user.is_authenticated:
        return {}
    token, expires = tokens.issue(
        customer_id=request.user.pk,
        sale_id=sale.pk,
        key=key,
        session=request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""),
        is_first=is_first,
    )
    return {TOKEN: token, "expires": str(expires)}


def stock_context(seen: SaleSnapshot) -> dict[str, Any]:
    """Return the context of the stock bar."""
    now = timezone.now()
    return {
        "sale": seen.sale,
        "phase": seen.sale.phase(now),
        "initial": seen.stocked,
        "as_of": seen.as_of,
        "now": now,
        # Spread at random, so that pages loaded in the same second poll at different times.
        "poll_ms": random.randint(*POLL_MS),
    }


def sale_context(
    request: HttpRequest, seen: SaleSnapshot, *, key: str = "", quantity: int = 1
) -> dict[str, Any]:
    """Return the context of the sale page; `key` and `quantity` are those of a refused form."""
    sale = seen.sale
    orders = _orders(request, sale)
    pending = [order for order in orders if order.status == Order.Status.PENDING]
    remaining = sale.limit_per_customer - sum(order.quantity for order in orders)
    key = key or str(uuid.uuid4())
    room_url = _room_url(request, sale)
    token = {} if room_url else purchase_token(request, sale, key, is_first=not orders)
    return {
        **stock_context(seen),
        **token,
        "room_url": room_url,
        "order": next(iter(pending or orders), None),
        "quantities": range(1, min(remaining, max(1, sale.left)) + 1),
        "quantity": quantity,
        "key": key,
    }
