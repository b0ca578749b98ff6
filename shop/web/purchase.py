"""A purchase over HTTP: who is the customer, what do they want, and the response.

A purchase token in the form identifies the customer without loading the web session and the user,
and proves what the CSRF check would prove. Without a valid token, the view identifies the customer
by the web session. Both then call `_serve`.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.datastructures import MultiValueDict
from django.utils.functional import SimpleLazyObject
from django.utils.translation import get_language_from_request

from shop.errors import STORE_ERRORS, ServiceUnavailable, ShopError, SoldOut, refusal_of, wants_json
from shop.models import User
from shop.platform.deadline import current_deadline
from shop.purchase import tokens
from shop.purchase.admission import admit, cached_sale, is_settled
from shop.purchase.place_order import Placed, place_order
from shop.reservations.reserve import Queued, reserve
from shop.web.decorators import CustomerRequest, customer_form
from shop.web.forms import TOKEN, PurchaseRequest, SeeOther, key_in_form, read_purchase
from shop.web.refusals import refuse

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
        if request.method == "POST" and (found := BUY.fullmatch(request.path_info)):
            token = _read_token(request, found[1])
            if token is not None:
                request.user = SimpleLazyObject(  # type: ignore[assignment]
                    partial(User, pk=token.customer_id)
                )
                return _serve(request, found[1], token.customer_id, is_first=token.is_first)
        return self.get_response(request)


@customer_form
def buy(request: CustomerRequest, slug: str) -> HttpResponse:
    """Buy: 201 or 202 with JSON, or 303 to the page of the order or the reservation."""
    return _serve(request, slug, request.user.pk)


def _read_token(request: HttpRequest, slug: str) -> tokens.PurchaseToken | None:
    """Return the token of a short form if it is valid for this sale and this web session."""
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
        is_valid = token is not None and token.sale_id == cached_sale(slug=slug).pk
    except (ShopError, *STORE_ERRORS):
        return None  # the view raises the same error, for customers with a web session
    return token if is_valid else None


def _is_same_origin(request: HttpRequest) -> bool:
    """Return False if the form is on another site; the view then makes the CSRF check."""
    host, origin = request.get_host(), request.META.get("HTTP_ORIGIN")  # refuses a foreign host
    return origin is None or origin == f"{request.scheme}://{host}"


def _serve(
    request: HttpRequest, slug: str, customer_id: int, *, is_first: bool = False
) -> HttpResponse:
    """Read the purchase, place its order or reserve its units, and return the response."""
    wanted = None
    try:
        sale = cached_sale(slug=slug)
        wanted = read_purchase(request, customer_id=customer_id, sale=sale, is_first=is_first)
        response = _bought(request, _buy(wanted))
    except (ShopError, *STORE_ERRORS) as error:
        refusal = refusal_of(error)
        assert refusal is not None
        # LocaleMiddleware has not run for a purchase with a token.
        language = get_language_from_request(request)
        response = refuse(request, wanted, refusal, language)
        response.headers["Content-Language"] = language
        response.headers["Vary"] = "Accept-Language"
    response.headers["Cache-Control"] = NEVER_CACHE
    response.headers["Content-Length"] = str(len(response.content))
    return response


def _buy(wanted: PurchaseRequest) -> Placed | Queued:
    """Admit the purchase; then place the order, or reserve the units of a queued sale.

    SoldOut gets a Retry-After while an earlier form with the same key may be in flight, because
    that one can still get a unit that is returned.
    """
    sale, customer_id = wanted.sale, wanted.customer_id
    if current_deadline().is_over:
        raise ServiceUnavailable
    try:
        admit(sale=sale, customer_id=customer_id)
        buy = reserve if sale.is_queued else partial(place_order, is_first=wanted.is_first)
        return buy(customer_id=customer_id, sale=sale, quantity=wanted.quantity, key=wanted.key)
    except SoldOut as error:
        if not is_settled(sale=sale):
            error.retry_after = ServiceUnavailable.retry_after
        raise


def _bought(request: HttpRequest, outcome: Placed | Queued) -> HttpResponse:
    receipt = outcome.receipt
    if not wants_json(request):
        return SeeOther(receipt["url"])
    return JsonResponse(receipt, status=outcome.status, headers={"Location": receipt["url"]})
