"""The purchase fast path: serve purchases with a valid token without session, user and CSRF check.

The token proves what these checks would prove. The purchase itself calls the same functions as the
view and gets the same responses; a refusal at admission needs no store. Every other request goes
to Django unchanged. So does a purchase whose response depends on the customer's own orders; its
idempotency key prevents a second purchase.
"""

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.handlers.wsgi import WSGIRequest
from django.core.signals import request_finished, request_started
from django.http import HttpResponse, JsonResponse
from django.middleware.csrf import CsrfViewMiddleware, get_token
from django.views.decorators.cache import never_cache

from locking import LockError, policy
from shop.catalogue.page_cache import read_sale
from shop.errors import (
    STORE_ERRORS,
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
from shop.platform import rate_limits
from shop.platform.deadline import is_late
from shop.purchase import service, tokens
from shop.purchase.admission import admit, cached_sale
from shop.purchase.place_order import Placed
from shop.purchase.tokens import PurchaseToken
from shop.reservations.reserve import Queued
from shop.web.cached_responses import TEMPLATE_USER, CachedResponse, CachingHandler, placeholder
from shop.web.forms import MAX_QUANTITY, TOKEN, Purchase, SeeOther, read_purchase
from shop.web.pages import stock_context

logger = logging.getLogger("shop")

BUY = re.compile(r"/sales/([-\w]+)/buy/", re.ASCII)
FORM = "application/x-www-form-urlencoded"
MAX_BODY = 8192
"""Bytes of a form."""
IMPERSONAL = (SoldOut, NotOpen, Overloaded, TooMany)
"""Refusals whose page does not depend on the customer's own orders."""


@dataclass(frozen=True, slots=True)
class TokenPurchase:
    """A purchase with a valid token."""

    request: WSGIRequest
    sale: Sale
    purchase: Purchase
    token: PurchaseToken


class PurchaseFastPath:
    """A WSGI application around Django's."""

    def __init__(self, django: CachingHandler) -> None:
        self.django = django

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serve a purchase that carries a valid token; pass every other request to Django."""
        if environ["REQUEST_METHOD"] == "POST":
            environ["shop.started_at"] = time.monotonic()
            found = BUY.fullmatch(environ.get("PATH_INFO", ""))
            if found and (request := _read_form(environ)):
                response = self._serve(request, found[1])
                if response:
                    return response.send(start_response)
                environ["wsgi.input"].seek(0)
        return self.django(environ, start_response)

    def _serve(self, request: WSGIRequest, slug: str) -> CachedResponse | None:
        request_started.send(sender=type(self), environ=request.environ)
        try:
            form = _authenticate(request, slug)
            return self._buy(form) if form else None
        except (ShopError, SuspiciousOperation):
            return None  # the view raises the same error and renders its page
        except Exception:
            logger.exception("Purchase fast path failed; falling back to the view")
            return None
        finally:
            request_finished.send(sender=type(self))

    def _buy(self, form: TokenPurchase) -> CachedResponse | None:
        sale, purchase, token = form.sale, form.purchase, form.token
        try:
            admit(sale=sale, customer_id=token.customer_id)
            rate_limits.count_repeated(settings.BUY_LIMIT, "buy", str(token.customer_id))
            form.request.environ["shop.is_counted"] = True
            outcome = service.buy(
                customer_id=token.customer_id,
                sale=sale,
                quantity=purchase.quantity,
                key=purchase.key,
                is_first=token.is_first,
                began=form.request.environ["shop.started_at"],
            )
        except IMPERSONAL as error:
            return self._refused(form, error)
        except STORE_ERRORS as error:
            logger.warning("Purchase refused: a store is unavailable (%s)", error)
            return self._refused(form, ServiceUnavailable())
        return self._bought(form, outcome)

    def _bought(self, form: TokenPurchase, outcome: Placed | Queued) -> CachedResponse:
        @never_cache
        def view(request: WSGIRequest) -> HttpResponse:
            is_json = wants_json(request)
            return JsonResponse({}, status=outcome.status) if is_json else SeeOther("/")

        cached = self.django.cached(form.request, outcome.status, view=view)
        receipt = outcome.receipt if wants_json(form.request) else None
        return cached.with_location(outcome.url, receipt)

    def _refused(self, form: TokenPurchase, error: ShopError) -> CachedResponse:
        quantity = form.purchase.quantity
        started_at = form.request.environ["shop.started_at"]

        @never_cache
        def view(request: WSGIRequest) -> HttpResponse:
            request.META["shop.started_at"] = started_at
            return _refusal_page(request, form.sale, error, quantity)

        is_safe = "unknown" if is_late(started_at) else _is_safe()
        key = (error.code, error.retry_after, quantity, is_safe)
        cached = self.django.cached(form.request, *key, view=view)
        return cached if wants_json(form.request) else cached.render(_customer_values(form))


def _read_form(environ: dict[str, Any]) -> WSGIRequest | None:
    """Return the request if it is a short form that may carry a token.

    The body is buffered, so that Django can read it again.
    """
    if environ.get("CONTENT_TYPE") != FORM or environ.get("SCRIPT_NAME"):
        return None
    length = environ.get("CONTENT_LENGTH", "")
    if not (length.isascii() and length.isdigit() and len(length) < 6 and int(length) <= MAX_BODY):
        return None
    body = environ["wsgi.input"].read(int(length))
    environ["wsgi.input"] = BytesIO(body)
    return WSGIRequest(environ) if f"{TOKEN}=".encode() in body else None


def _authenticate(request: WSGIRequest, slug: str) -> TokenPurchase | None:
    """Return the purchase if its token is valid; raise ShopError if the form is malformed."""
    request.get_host()  # raises DisallowedHost
    if settings.SECURE_SSL_REDIRECT and not request.is_secure():
        return None
    sent = request.POST.getlist(TOKEN)
    purchase = read_purchase(request, most=MAX_QUANTITY)
    session = request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    token = tokens.read(sent[0], key=purchase.key, session=session) if len(sent) == 1 else None
    if token is None:
        return None
    sale = cached_sale(slug=slug)
    if token.sale_id != sale.pk or purchase.quantity > sale.limit_per_customer:
        return None
    return TokenPurchase(request, sale, purchase, token)


def _refusal_page(
    request: WSGIRequest, sale: Sale, error: ShopError, quantity: int
) -> HttpResponse:
    """Render the sale page with the refusal, or the refusal alone, with placeholders."""
    if wants_json(request):
        return answer(request, error)
    values = {"user": TEMPLATE_USER, "csrf_token": placeholder("csrf")}
    if isinstance(error, TooMany) or is_late(request.META["shop.started_at"]):
        return answer(request, error, context=values)
    values |= {name: placeholder(name) for name in ("key", TOKEN, "expires")}
    try:
        seen = read_sale(slug=sale.slug)
        most = min(sale.limit_per_customer, max(1, seen.sale.left))
        choice = {"quantities": range(1, most + 1), "quantity": quantity}
        context = {**stock_context(seen), **choice, **values}
    except STORE_ERRORS:
        return answer(request, ServiceUnavailable())
    return answer(request, error, page="shop/sale.html", context=context)


def _customer_values(form: TokenPurchase) -> dict[str, str]:
    """Return the values of the placeholders for this customer."""
    request = form.request
    CsrfViewMiddleware(lambda _: HttpResponse()).process_request(request)
    return {
        "csrf": get_token(request) if "CSRF_COOKIE" in request.META else "",
        "key": form.purchase.key,
        TOKEN: request.POST[TOKEN],
        "expires": str(form.token.expires),
    }


def _is_safe() -> bool | None:
    """Return True if the page needs no banner about overselling, None if that is unknown."""
    try:
        return policy.current().is_safe
    except LockError:
        return None
