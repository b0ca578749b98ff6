"""Public pages: home, the catalogue and the sale page."""

import uuid
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zlib import crc32

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.cache import cache_control
from django.views.static import serve

from shop.catalogue.page_cache import (
    CURRENT,
    SaleSnapshot,
    get_cached_home,
    get_cached_product,
    get_cached_products,
    get_cached_sale,
)
from shop.errors import STORE_ERRORS
from shop.mail.kinds import OPENING_LEAD
from shop.mail.service import can_mail, has_reminder
from shop.models import Order, Sale
from shop.orders.service import live_orders
from shop.payments.providers import can_pay
from shop.platform import shared_pages
from shop.purchase import tokens
from shop.purchase.admission import GateState, gates
from shop.web.context import time_to_pay
from shop.web.decorators import live_page, public_page
from shop.web.forms import TOKEN, read_key

POLL, POLL_FAR = timedelta(seconds=1), timedelta(minutes=1)
"""Pauses between two polls of a page: while a sale is open, and long before it opens."""


@live_page
def home(request: HttpRequest) -> HttpResponse:
    """Show the live, upcoming and past sales."""
    return render(request, "shop/home.html", {"cards": _part_of_home("shop/_sales.html")})


@live_page
def home_live(request: HttpRequest) -> HttpResponse:
    """Render the states of all cards, for the poll of the home page.

    When sales have opened, ended or been added since that page was rendered, render all its cards.
    """
    now = shared_pages.fragment("home", _home_context)
    is_known = request.GET.get("layout") == now["layout"]
    response = HttpResponse(_part_of_home(f"shop/{'_states' if is_known else '_sales'}.html"))
    response["X-Poll"] = str(now["poll_ms"])
    if is_known:
        response["HX-Reswap"] = "none"  # each state replaces that of its card
    return response


def _part_of_home(template: str) -> SafeString:
    def render_part() -> SafeString:
        return render_to_string(template, shared_pages.fragment("home", _home_context))

    return shared_pages.fragment(template, render_part)


def _home_context() -> dict[str, Any]:
    groups = get_cached_home()
    slugs = "|".join(",".join(sale.slug for sale in sales) for sales in groups.values())
    poll_ms = min((_poll_ms(sale) for sale in groups["live"] + groups["upcoming"]), default=60_000)
    return {
        **groups,
        "sales": [sale for sales in groups.values() for sale in sales],
        "full": CURRENT,
        "layout": f"{crc32(slugs.encode()):x}",
        "now": timezone.now(),
        "poll_ms": poll_ms,
    }


def _poll_ms(sale: Sale) -> int:
    """Return the pause until the next poll, in milliseconds: at the latest at the opening."""
    until = max(POLL, min(POLL_FAR, sale.opens_at - timezone.now()))
    return until // timedelta(milliseconds=1)


@public_page
def products(request: HttpRequest) -> HttpResponse:
    """Show a page of the catalogue or of a search; unknown choices are ignored."""
    # PostgreSQL accepts no NUL in a text.
    text = request.GET.get("q", "").replace("\0", " ").strip()[:100]
    choice = {name: request.GET.get(name, "") for name in ("show", "sort")}
    page = get_cached_products(number=request.GET.get("page", "1"), text=text, **choice)
    return render(request, "shop/products.html", {"page": page, "text": text, **choice})


@public_page
def product(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a product and its sales."""
    return render(request, "shop/product.html", {"product": get_cached_product(slug=slug)})


@public_page
@cache_control(public=True, immutable=True, max_age=31_536_000)
def photo(request: HttpRequest, name: str) -> HttpResponseBase:
    """Serve the photo of a product. A new one gets a new name."""
    response = serve(request, f"products/{name}", document_root=settings.MEDIA_ROOT)
    response.headers["Content-Type"] = "image/webp"  # unknown to the system's list of types
    return response


@live_page
def sale(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a sale in its current phase, for this customer."""
    seen = shared_pages.fragment(f"sale seen/{slug}", partial(get_cached_sale, slug=slug))
    return render(request, "shop/sale.html", sale_context(request, seen))


@live_page
def sale_stock(request: HttpRequest, slug: str) -> HttpResponse:
    """Render the stock bar, which the page polls; reload a page of another phase or offer.

    At the opening the page is not reloaded, which would load the server: shop.js enables the form.
    """
    seen = get_cached_sale(slug=slug)
    context = stock_context(seen)
    response = render(request, "shop/_stock.html", context)
    response["X-Poll"] = str(context["poll_ms"])
    change = request.GET.get("phase"), context["phase"]
    offer = {"price": str(seen.sale.price)}
    if context["phase"] == Sale.Phase.BEFORE:
        offer["opens"] = str(int(seen.sale.opens_at.timestamp()))
    is_corrected = any(request.GET.get(name, value) != value for name, value in offer.items())
    if is_corrected or (change[0] != change[1] and change != (Sale.Phase.BEFORE, Sale.Phase.OPEN)):
        response["HX-Refresh"] = "true"
    return response


@live_page
def sale_token(request: HttpRequest, slug: str) -> HttpResponse:
    """Render a new purchase token for an open page's form, or nothing for a visitor."""
    key = read_key(request.GET.get("key", ""))
    seen = get_cached_sale(slug=slug)
    token = purchase_token(request, seen.sale, key, is_first=not _orders(request, seen.sale)[0])
    if not token:
        return HttpResponse(status=204)
    return render(request, "shop/_purchase_token.html", {"sale": seen.sale, "key": key, **token})


def _gate(request: HttpRequest, sale: Sale) -> GateState | None:
    """Return what this visitor has to pass before the form, or has passed, or None.

    While the database is unavailable, the page stays; the purchase asks again.
    """
    try:
        found = (gate.state(sale=sale, customer_id=request.user.pk) for gate in gates)
        return next(filter(None, found), None)
    except STORE_ERRORS:
        return None


def _reminder(request: HttpRequest, sale: Sale) -> bool | None:
    """Return whether the customer gets one; None if none is offered, as in the last minutes."""
    user, is_early = request.user, sale.opens_at - timezone.now() > OPENING_LEAD
    if not (is_early and user.is_authenticated and can_mail()):
        return None
    return has_reminder(sale=sale, customer=user)


def _orders(request: HttpRequest, sale: Sale) -> tuple[list[Order], datetime | None]:
    """Return the orders of this customer in the sale, and the end of the time to pay of any."""
    user = request.user
    return live_orders(customer=user, sale=sale) if user.is_authenticated else ([], None)


def purchase_token(request: HttpRequest, sale: Sale, key: str, *, is_first: bool) -> dict[str, Any]:
    """Return the context of the purchase token of a signed-in customer's form."""
    if not request.user.is_authenticated:
        return {}
    token = tokens.issue(
        customer_id=request.user.pk,
        sale_id=sale.pk,
        key=key,
        session=request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""),
        is_first=is_first,
    )
    return {TOKEN: token, "renew_after": settings.PURCHASE_TOKEN_SECONDS // 2}


def stock_context(seen: SaleSnapshot) -> dict[str, Any]:
    """Return the context of the stock bar."""
    now = timezone.now()
    return {
        "sale": seen.sale,
        "phase": seen.sale.phase(now),
        "initial": seen.stocked,
        "as_of": seen.as_of,
        "now": now,
        "poll_ms": _poll_ms(seen.sale),
    }


def sale_context(
    request: HttpRequest, seen: SaleSnapshot, *, key: str = "", quantity: int = 1
) -> dict[str, Any]:
    """Return the context of the sale page; `key` and `quantity` are those of a refused form."""
    sale = seen.sale
    orders, pay_by = _orders(request, sale)
    pending = [order for order in orders if order.status == Order.Status.PENDING]
    remaining = sale.limit_per_customer - sum(order.quantity for order in orders)
    key = key or str(uuid.uuid4())
    gate = _gate(request, sale)
    room_url = gate.url if gate and gate.state != "turn" else None
    token = {} if room_url else purchase_token(request, sale, key, is_first=not orders)
    return {
        **stock_context(seen),
        **token,
        "room_url": room_url,
        "gate": gate,
        "turn_until": timezone.now() + timedelta(seconds=gate.lasts) if gate else None,
        "time_to_pay": time_to_pay(pay_by) if can_pay() else None,
        "reminder": _reminder(request, sale),
        "order": next(iter(pending or orders), None),
        "quantities": range(1, min(remaining, max(1, sale.left)) + 1),
        "quantity": quantity,
        "key": key,
    }
