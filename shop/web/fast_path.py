"""In front of Django: a form with a good ticket buys without session, user and forgery check.

The ticket says all that these would say. The form is then read, admitted, counted and served by
the very functions that the view calls, and answered as the view answers; a buyer who is turned
away at the door costs no store anything. Whatever is not plainly such a form goes on to Django as
it came, and so does what needs a page of the buyer's own: the same key is never served twice.
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
from django.utils.cache import add_never_cache_headers

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
from shop.purchase import buying
from shop.purchase import tokens as tickets
from shop.purchase.admission import admit, sale_at_door
from shop.purchase.buying import Outcome
from shop.purchase.place_order import is_late
from shop.purchase.tokens import Ticket
from shop.web.cached_responses import SOMEBODY, Answer, Handler, mark
from shop.web.forms import MAX_QUANTITY, Purchase, SeeOther, read_purchase
from shop.web.pages import stock_context

logger = logging.getLogger("shop")

BUY = re.compile(r"/sales/([-\w]+)/buy/", re.ASCII)
FORM = "application/x-www-form-urlencoded"
MAX_BODY = 8192
IMPERSONAL = (SoldOut, NotOpen, Overloaded, TooMany)
"""Refusals that say nothing about the buyer's own orders."""


@dataclass(frozen=True, slots=True)
class Form:
    """A purchase whose ticket is good."""

    request: WSGIRequest
    sale: Sale
    purchase: Purchase
    ticket: Ticket


class PurchaseFastPath:
    """A WSGI application around Django's."""

    def __init__(self, django: Handler) -> None:
        self.django = django

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serve a purchase with a ticket; everything else is Django's."""
        if environ["REQUEST_METHOD"] == "POST":
            environ["shop.started_at"] = time.monotonic()
            found = BUY.fullmatch(environ.get("PATH_INFO", ""))
            if found and (request := _take_in(environ)):
                served = self._serve(request, found[1])
                if served:
                    return served.send(start_response)
                environ["wsgi.input"].seek(0)
        return self.django(environ, start_response)

    def _serve(self, request: WSGIRequest, slug: str) -> Answer | None:
        request_started.send(sender=type(self), environ=request.environ)
        try:
            form = _read(request, slug)
            return self._answer(form) if form else None
        except (ShopError, SuspiciousOperation):
            return None  # Django finds the same fault, and has a page for it
        except Exception:
            logger.exception("the turnstile stumbles; Django answers instead")
            return None
        finally:
            request_finished.send(sender=type(self))

    def _answer(self, form: Form) -> Answer | None:
        sale, asked, ticket = form.sale, form.purchase, form.ticket
        try:
            admit(sale=sale, customer_id=ticket.customer_id)
            rate_limits.count_repeated(settings.BUY_LIMIT, "buy", str(ticket.customer_id))
            form.request.environ["shop.is_counted"] = True
            outcome = buying.buy(
                customer_id=ticket.customer_id,
                sale=sale,
                quantity=asked.quantity,
                key=asked.key,
                is_first=ticket.is_first,
                began=form.request.environ["shop.started_at"],
            )
        except IMPERSONAL as error:
            return self._refused(form, error)
        except STORE_ERRORS as error:
            logger.warning("a store does not answer: %s", error)
            return self._refused(form, ServiceUnavailable())
        return self._bought(form, outcome)

    def _bought(self, form: Form, outcome: Outcome) -> Answer:
        def make(request: WSGIRequest) -> HttpResponse:
            return _never_cached(
                JsonResponse({}, status=outcome.status) if wants_json(request) else SeeOther("/")
            )

        prepared = self.django.prepared(form.request, outcome.status, make=make)
        receipt = outcome.receipt if wants_json(form.request) else None
        return prepared.leading_to(outcome.url, receipt)

    def _refused(self, form: Form, error: ShopError) -> Answer:
        quantity = form.purchase.quantity
        began = form.request.environ["shop.started_at"]

        def make(request: WSGIRequest) -> HttpResponse:
            request.META["shop.started_at"] = began
            return _never_cached(_page(request, form.sale, error, quantity))

        is_safe = "unknown" if is_late(began) else _is_safe()
        what = (error.code, error.retry_after, quantity, is_safe)
        prepared = self.django.prepared(form.request, *what, make=make)
        return prepared if wants_json(form.request) else prepared.fill(_own(form))


def _take_in(environ: dict[str, Any]) -> WSGIRequest | None:
    """A short form that may carry a ticket, and its body where Django finds it again."""
    if environ.get("CONTENT_TYPE") != FORM or environ.get("SCRIPT_NAME"):
        return None
    length = environ.get("CONTENT_LENGTH", "")
    if not (length.isascii() and length.isdigit() and len(length) < 6 and int(length) <= MAX_BODY):
        return None
    body = environ["wsgi.input"].read(int(length))
    environ["wsgi.input"] = BytesIO(body)
    return WSGIRequest(environ) if b"ticket=" in body else None


def _read(request: WSGIRequest, slug: str) -> Form | None:
    """The form, when its ticket is good; raises what makes it none of ours."""
    request.get_host()  # or DisallowedHost
    if settings.SECURE_SSL_REDIRECT and not request.is_secure():
        return None
    sent = request.POST.getlist("ticket")
    asked = read_purchase(request, most=MAX_QUANTITY)
    session = request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    ticket = tickets.read(sent[0], key=asked.key, session=session) if len(sent) == 1 else None
    if ticket is None:
        return None
    sale = sale_at_door(slug=slug)
    if ticket.sale_id != sale.pk or asked.quantity > sale.limit_per_customer:
        return None
    return Form(request, sale, asked, ticket)


def _page(request: WSGIRequest, sale: Sale, error: ShopError, quantity: int) -> HttpResponse:
    """The sale page that explains the refusal, for nobody in particular; or that alone."""
    if wants_json(request):
        return answer(request, error)
    own = {"user": SOMEBODY, "csrf_token": mark("csrf")}
    if isinstance(error, TooMany) or is_late(request.META["shop.started_at"]):
        return answer(request, error, context=own)
    own |= {name: mark(name) for name in ("key", "ticket", "expires")}
    try:
        seen = read_sale(slug=sale.slug)
        most = min(sale.limit_per_customer, max(1, seen.sale.left))
        choice = {"quantities": range(1, most + 1), "quantity": quantity}
        context = {**stock_context(seen), **choice, **own}
    except STORE_ERRORS:
        return answer(request, ServiceUnavailable())
    return answer(request, error, page="shop/sale.html", context=context)


def _own(form: Form) -> dict[str, str]:
    """What a page for everybody shows of its buyer."""
    request = form.request
    CsrfViewMiddleware(lambda _: HttpResponse()).process_request(request)
    return {
        "csrf": get_token(request) if "CSRF_COOKIE" in request.META else "",
        "key": form.purchase.key,
        "ticket": request.POST["ticket"],
        "expires": str(form.ticket.expires),
    }


def _is_safe() -> bool | None:
    """Whether the page's banner is off; None when nobody knows."""
    try:
        return policy.current().is_safe
    except LockError:
        return None


def _never_cached(response: HttpResponse) -> HttpResponse:
    add_never_cache_headers(response)
    return response
