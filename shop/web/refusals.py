"""The response to a refused purchase: the sale page with the reason, or JSON.

Most refusals are the same for all customers: their bodies are rendered once a second. The values
that differ (idempotency key, purchase token, CSRF token) are placeholders in them.
"""

import math
import secrets
from collections.abc import Hashable
from functools import partial
from html import escape
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware, get_token
from django.utils.translation import gettext as _
from django.utils.translation import override

from shop.catalogue.page_cache import read_sale
from shop.errors import (
    STORE_ERRORS,
    LimitReached,
    NotOpen,
    Overloaded,
    ServiceUnavailable,
    ShopError,
    SoldOut,
    TooMany,
    answer,
    wants_json,
)
from shop.models import Sale
from shop.platform.cache import RefreshingCache
from shop.platform.deadline import current_deadline
from shop.web.forms import TOKEN, PurchaseRequest
from shop.web.pages import purchase_token, sale_context, stock_context

MAX_AGE = 1.0
"""Seconds after which a body is rendered again; the stock bar on the page shows its age."""
MAX_BODIES = 500
IMPERSONAL = (SoldOut, NotOpen, Overloaded, TooMany)
"""Refusals whose page does not depend on the customer's own orders."""
TEMPLATE_USER = SimpleNamespace(is_authenticated=True, is_staff=False, username="")
"""The user of a cached page: signed in, without a name."""

# Random, so that no customer can send it. HTML does not escape "@"; in a URL it is "%40".
_PLACEHOLDER = f"@{secrets.token_hex(8)}-%s@"
_PERSONAL_VALUES = ("csrf_token", "key", TOKEN, "expires")
_rendered: RefreshingCache[Hashable, HttpResponse] = RefreshingCache(MAX_BODIES)
clear = _rendered.clear


def refuse(
    request: HttpRequest, wanted: PurchaseRequest | None, error: ShopError, language: str
) -> HttpResponse:
    """Return the response to a refused purchase, with the customer's form on the page."""
    if wanted and isinstance(error, IMPERSONAL):
        return _impersonal(request, wanted, error, language)
    with override(language):
        if wanted and isinstance(error, LimitReached):
            text = _("You can buy at most %(most)d in this sale.")
            error = LimitReached(text % {"most": wanted.sale.limit_per_customer})
        if wanted is None or wants_json(request):
            return answer(request, error)
        try:
            seen = read_sale(slug=wanted.sale.slug)
            context = sale_context(request, seen, key=wanted.key, quantity=wanted.quantity)
        except STORE_ERRORS:
            return answer(request, ServiceUnavailable())
        context["csrf_token"] = _csrf_token(request)
        return answer(request, error, page="shop/sale.html", context=context)


def _impersonal(
    request: HttpRequest, wanted: PurchaseRequest, error: ShopError, language: str
) -> HttpResponse:
    """Return the rendered refusal with the customer's values; one thread renders it again."""
    sale, quantity, is_json = wanted.sale, wanted.quantity, wants_json(request)
    key = (sale.slug, error.code, error.retry_after, quantity, language, is_json)
    read = partial(_render, request.path, sale, error, quantity, language, is_json=is_json)
    page = _rendered.get(key, read, fresh=MAX_AGE, max_age=math.inf)
    body = page.content if is_json else _fill(page.content, _values(request, wanted))
    return HttpResponse(body, status=page.status_code, headers=dict(page.headers.items()))


def _render(
    path: str, sale: Sale, error: ShopError, quantity: int, language: str, *, is_json: bool
) -> HttpResponse:
    """Render the sale page with the refusal, or the refusal alone, with placeholders.

    The request has no customer, so that no value of one is cached.
    """
    request = HttpRequest()
    request.method, request.path = "POST", path
    request.META = {"HTTP_ACCEPT": "application/json"} if is_json else {}
    values: dict[str, Any] = {name: _PLACEHOLDER % name for name in _PERSONAL_VALUES}
    values["user"] = TEMPLATE_USER
    with override(language):
        if is_json:
            return answer(request, error)
        if isinstance(error, TooMany) or current_deadline().is_over:
            return answer(request, error, context=values)
        try:
            seen = read_sale(slug=sale.slug)
        except STORE_ERRORS:
            return answer(request, ServiceUnavailable())
        most = min(sale.limit_per_customer, max(1, seen.sale.left))
        choice = {"quantities": range(1, most + 1), "quantity": quantity}
        context = {**stock_context(seen), **choice, **values}
        return answer(request, error, page="shop/sale.html", context=context)


def _fill(body: bytes, values: dict[str, str]) -> bytes:
    """Replace the placeholders in a body, escaped for HTML and for URLs."""
    for name, value in values.items():
        placeholder = _PLACEHOLDER % name
        body = body.replace(placeholder.encode(), escape(value).encode())
        in_url = quote(placeholder, safe="").encode()
        body = body.replace(in_url, quote(value, safe="").encode())
    return body


def _values(request: HttpRequest, wanted: PurchaseRequest) -> dict[str, str]:
    """Return the customer's values of the placeholders."""
    token = purchase_token(request, wanted.sale, wanted.key, is_first=wanted.is_first)
    return {"csrf_token": _csrf_token(request), "key": wanted.key, **token}


def _csrf_token(request: HttpRequest) -> str:
    """Return the CSRF token of the request's cookie; empty if there is none."""
    if "CSRF_COOKIE" not in request.META:  # the middleware for it has not run
        CsrfViewMiddleware(lambda _: HttpResponse()).process_request(request)
    return get_token(request) if "CSRF_COOKIE" in request.META else ""
