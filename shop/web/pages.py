"""What everybody may see: the sales and the catalogue."""

import random
import re
import uuid
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from shop.catalogue.page_cache import Seen, see_home, see_product, see_products, see_sale
from shop.models import Order, Sale
from shop.orders.service import live_orders
from shop.purchase import tokens as tickets
from shop.web.decorators import public_page
from shop.web.forms import read_key

POLL_MS = (2500, 4500)


@never_cache
@public_page
def home(request: HttpRequest) -> HttpResponse:
    """Sales that are live, upcoming and past."""
    lists = see_home()
    context = {"live": lists.live, "upcoming": lists.upcoming, "past": lists.past}
    return render(request, "shop/home.html", {**context, "now": timezone.now()})


@public_page
def products(request: HttpRequest) -> HttpResponse:
    """The catalogue, searched and in pages."""
    # A NUL is no character to PostgreSQL.
    text = request.GET.get("q", "").replace("\0", " ").strip()[:100]
    page = see_products(text=text, number=request.GET.get("page", "1"))
    return render(request, "shop/products.html", {"page": page, "text": text})


@public_page
def product(request: HttpRequest, slug: str) -> HttpResponse:
    """One product and where it is on sale."""
    return render(request, "shop/product.html", {"product": see_product(slug=slug)})


@never_cache
@public_page
def sale(request: HttpRequest, slug: str) -> HttpResponse:
    """A sale in whichever state it is, for this customer."""
    return render(request, "shop/sale.html", sale_context(request, see_sale(slug=slug)))


@never_cache
@public_page
def sale_stock(request: HttpRequest, slug: str) -> HttpResponse:
    """The stock bar alone, polled; has the page loaded again once the sale is in another phase.

    Not at the opening, when everybody looks: shop.js opens the page that is there.
    """
    seen = see_sale(slug=slug)
    context = {**stock_context(seen), **_kept_fresh(request, seen.sale)}
    response = render(request, "shop/_stock.html", context)
    change = request.GET.get("phase"), context["phase"]
    if change[0] != change[1] and change != (Sale.Phase.BEFORE, Sale.Phase.OPEN):
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


def stock_context(seen: Seen) -> dict[str, Any]:
    """What the stock bar shows."""
    now = timezone.now()
    return {
        "sale": seen.sale,
        "phase": seen.sale.phase(now),
        "initial": seen.stocked,
        "as_of": seen.as_of,
        "now": now,
        # Not all at once: whoever loaded the page in the same second asks again in another.
        "poll_ms": random.randint(*POLL_MS),
    }


def sale_context(
    request: HttpRequest, seen: Seen, *, key: str = "", quantity: int = 1
) -> dict[str, Any]:
    """What the sale page shows; `key` and `quantity` are those of a form that may be sent again."""
    sale = seen.sale
    mine = _mine(request, sale)
    pending = [order for order in mine if order.status == Order.Status.PENDING]
    room = sale.limit_per_customer - sum(order.quantity for order in mine)
    key = key or str(uuid.uuid4())
    return {
        **stock_context(seen),
        **_ticket(request, sale, key, mine),
        "order": next(iter(pending or mine), None),
        "quantities": range(1, min(room, max(1, sale.left)) + 1),
        "quantity": quantity,
        "key": key,
    }
