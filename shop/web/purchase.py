"""A purchase over HTTP: who is the customer, what do they want, and the response.

A purchase token identifies the customer of a request for JSON, as the page's script sends it,
without loading the web session and the user, and proves what the CSRF check would prove. Any other
request continues to the view, which identifies the customer by the web session. Both then call
`_serve`.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.datastructures import MultiValueDict
from django.utils.translation import get_language_from_request, override
from django.utils.translation import gettext as _

from shop.catalogue.page_cache import read_sale
from shop.errors import (
    STORE_ERRORS,
    FewerLeft,
    LimitReached,
    ServiceUnavailable,
    ShopError,
    SoldOut,
    answer,
    refusal_of,
    wants_json,
)
from shop.models import Sale
from shop.platform.deadline import current_deadline
from shop.purchase import tokens
from shop.purchase.admission import admit, cached_sale
from shop.purchase.place_order import Placed, place_order
from shop.reservations.reserve import Queued, reserve
from shop.sales.purchase_request import PurchaseRequest
from shop.web.decorators import CustomerRequest, customer_form
from shop.web.forms import TOKEN, SeeOther, key_in_form, read_purchase
from shop.web.pages import sale_context

BUY = re.compile(r"/sales/([-\w]+)/buy/", re.ASCII)
FORM = "application/x-www-form-urlencoded"
MAX_BODY = 8192
"""Bytes of a form with a token."""
NEVER_CACHE = "max-age=0, no-cache, no-store, must-revalidate, private"
"""As Django's `never_cache` sets it, without the time it takes to merge it and to add Expires."""


class PurchaseTokenMiddleware:
    """Serves purchases that carry a valid token; all other requests go on to the views."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request, or call the next middleware."""
        found = BUY.fullmatch(request.path_info) if request.method == "POST" else None
        sent = _read_token(request, found[1]) if found and wants_json(request) else None
        if sent is None:
            return self.get_response(request)
        token, sale = sent
        language = get_language_from_request(request)
        with override(language):  # as LocaleMiddleware, which has not run
            response = _serve(request, sale, token.customer_id, is_first=token.is_first)
        response.headers["Content-Language"] = language
        response.headers["Vary"] = "Accept-Language"
        return response


@customer_form
def buy(request: CustomerRequest, slug: str) -> HttpResponse:
    """Buy: 201 or 202 with JSON, or 303 to the page of the order or the reservation."""
    return _serve(request, cached_sale(slug=slug), request.user.pk)


def _read_token(request: HttpRequest, slug: str) -> tuple[tokens.PurchaseToken, Sale] | None:
    """Return the sale, and the token of a short form if it is valid for it and this web session."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if request.META.get("CONTENT_TYPE") != FORM or not re.fullmatch("[0-9]{1,5}", length):
        return None
    if int(length) > MAX_BODY or not _is_same_origin(request):
        return None
    most = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
    with suppress(ValueError):  # Django then decodes the body in its own way, or refuses it
        # QueryDict would contain the same, but takes three times as long.
        fields = parse_qs(request.body.decode(), keep_blank_values=True, max_num_fields=most)
        request.POST = MultiValueDict(fields)  # type: ignore[assignment]
    sent = request.POST.getlist(TOKEN)
    if len(sent) != 1 or not sent[0]:
        return None
    session = request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    try:
        token = tokens.read(sent[0], key=key_in_form(request), session=session)
        sale = cached_sale(slug=slug) if token is not None else None
    except (ShopError, *STORE_ERRORS):
        return None  # the view raises the same error, for customers with a web session
    return (token, sale) if token and sale and token.sale_id == sale.pk else None


def _is_same_origin(request: HttpRequest) -> bool:
    """Return False if the form is on another site; the view then makes the CSRF check."""
    host, origin = request.get_host(), request.META.get("HTTP_ORIGIN")  # refuses a foreign host
    return origin is None or origin == f"{request.scheme}://{host}"


def _serve(
    request: HttpRequest, sale: Sale, customer_id: int, *, is_first: bool = False
) -> HttpResponse:
    """Read the purchase, place its order or reserve its units, and return the response."""
    wanted = None
    try:
        wanted = read_purchase(request, customer_id=customer_id, sale=sale, is_first=is_first)
        response = _bought(request, _buy(wanted))
    except (ShopError, *STORE_ERRORS) as error:
        response = _refused(request, wanted, error)
    response.headers["Cache-Control"] = NEVER_CACHE
    response.headers["Content-Length"] = str(len(response.content))
    return response


def _buy(wanted: PurchaseRequest) -> Placed | Queued:
    """Admit the purchase; then place the order, or reserve the units of a queued sale."""
    admit(wanted)
    if current_deadline().is_over:
        raise ServiceUnavailable
    return reserve(wanted) if wanted.sale.is_queued else place_order(wanted)


def _bought(request: HttpRequest, outcome: Placed | Queued) -> HttpResponse:
    receipt = outcome.receipt
    if not wants_json(request):
        return SeeOther(receipt["url"])
    return JsonResponse(receipt, status=outcome.status, headers={"Location": receipt["url"]})


def _refused(
    request: HttpRequest, wanted: PurchaseRequest | None, error: Exception
) -> HttpResponse:
    """Return the reason as JSON, or on the sale page with the customer's form."""
    refusal = refusal_of(error)
    assert refusal is not None
    if wanted and refusal.code == LimitReached.code:
        most = wanted.sale.limit_per_customer
        text = _("You can buy at most %(most)d in this sale.") % {"most": most}
        refusal = LimitReached(text, more={"fewer_left": True} if wanted.quantity > most else {})
    if wanted and isinstance(refusal, SoldOut) and wanted.quantity > 1 and wanted.sale.left > 0:
        refusal = FewerLeft(more={"fewer_left": True})
    if wanted is None or wants_json(request) or current_deadline().is_over:
        return answer(request, refusal)
    try:
        seen = read_sale(slug=wanted.sale.slug)
        context = sale_context(request, seen, key=wanted.key, quantity=wanted.quantity)
    except STORE_ERRORS:
        return answer(request, ServiceUnavailable())
    return answer(request, refusal, page="shop/sale.html", context=context)
