"""The errors of the shop, and the one place that turns each into an HTTP response.

docs/reference/http.md says which codes a purchase may return.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import render
from django.template import loader
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import Promise
from django.utils.translation import get_language_from_request, override, pgettext_lazy
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from locking import LockError, LockUnavailable
from locking.exceptions import KeyInFlight

logger = logging.getLogger("shop")


class ShopError(Exception):
    """A refusal, with a status, a stable code, a title and advice for the customer."""

    status, code = HTTPStatus.CONFLICT, "refused"
    title = _("The request failed")
    advice: str | Promise = _("Please go back and try again.")
    retry_after: int | None = None
    url: str | None = None
    """Path of the page on which the customer can go on."""
    page = "shop/error.html"
    """The template that explains it, unless the view chooses the one of its form."""

    def __init__(
        self,
        advice: str | Promise = "",
        *,
        retry_after: int | None = None,
        url: str | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.url, self.more = url, more  # `more` are further members of the JSON
        self.advice = advice or self.advice
        self.retry_after = self.retry_after if retry_after is None else retry_after
        super().__init__(self.advice)  # a lazy text costs nothing until it is shown


class BadInput(ShopError):
    """The form or body is malformed."""

    status, code = HTTPStatus.BAD_REQUEST, "bad_input"
    title = _("We couldn't read that request")


class UnsupportedType(BadInput):
    """The body has an unsupported content type."""

    status, code = HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_type"


class SignInFirst(ShopError):
    """The request requires a signed-in customer."""

    status, code = HTTPStatus.UNAUTHORIZED, "sign_in"
    title = _("Please sign in")
    advice = _("Sign in and try again.")


class Forgery(ShopError):
    """The CSRF token of a form or the signature of a callback is missing or wrong."""

    status, code = HTTPStatus.FORBIDDEN, "forgery"
    title = _("This page is out of date")
    advice = _("Reload the page and try again. Cookies must be allowed.")


class NotAllowed(ShopError):
    """The account lacks the permission."""

    status, code = HTTPStatus.FORBIDDEN, "not_allowed"
    title = _("You don't have access to this page")
    advice = _("Sign in with a different account.")


class WrongMethod(ShopError):
    """The URL exists, but not for this HTTP method."""

    status, code = HTTPStatus.METHOD_NOT_ALLOWED, "wrong_method"
    title = _("This page can't be opened directly")
    advice = _("Go back and use the button.")


class ProofRequired(ShopError):
    """The form needs a proof of work: see `shop.platform.proof_of_work`."""

    status, code = HTTPStatus.FORBIDDEN, "proof_required"
    title = _("One more step")
    advice = _("This step keeps programs from sending thousands of forms. Please continue.")
    page = "shop/proof.html"


class NotFound(ShopError):
    """The object does not exist, or belongs to another customer."""

    status, code = HTTPStatus.NOT_FOUND, "not_found"
    title = pgettext_lazy("error page", "Page not found")
    advice = _("It may have moved, or the link may be wrong.")


class NotOpen(ShopError):
    """The sale has not opened, or has ended."""

    code = "not_open"
    title = _("This sale is not open")
    advice = _("You can buy while it is open. Its page shows when it opens or ends.")


class SoldOut(ShopError):
    """Fewer units are left than requested."""

    code = "sold_out"
    title = _("Sold out")
    advice = _("More may become available if orders expire or are cancelled.")


class FewerLeft(SoldOut):
    """The customer may have a smaller quantity."""

    title = _("Fewer left than you want")
    advice = _(
        "Choose a smaller quantity. More may become available if orders expire or are cancelled."
    )


class NotAdmitted(ShopError):
    """The sale has a waiting room, and it is not the customer's turn."""

    code = "not_admitted"
    title = _("It's not your turn")
    advice = _("Go to the waiting room of this sale to join it or to see your position.")


class LimitReached(ShopError):
    """The customer has reached the limit of the sale."""

    code = "limit"
    title = _("Purchase limit reached")
    advice = _("You can't buy more in this sale.")


class UnpaidLimitReached(LimitReached):
    """Too many of the customer's orders in the sale expired unpaid."""

    code = "unpaid_limit"
    title = _("You can't reserve this again")
    advice = _(
        "Too many of your orders in this sale expired unpaid. You can still buy in other sales."
    )


class InvalidTransition(ShopError):
    """The order's state does not allow the transition."""

    code = "wrong_step"
    title = _("This order can no longer be changed")
    advice = _("It was already paid or cancelled, or it has expired.")


class KeyReused(ShopError):
    """The idempotency key was used for another form."""

    status, code = HTTPStatus.UNPROCESSABLE_ENTITY, "key_reused"
    title = _("This form has already been used")
    advice = _("Open the sale page again to place another order.")


class InFlight(ShopError):
    """An earlier request with the same key has not finished yet."""

    code = "in_flight"
    title = _("Your order is still being processed")
    advice = _("Please try again in a moment. You won't be charged twice.")
    retry_after = KeyInFlight.retry_after


class TooMany(ShopError):
    """The client exceeded its rate limit."""

    status, code = HTTPStatus.TOO_MANY_REQUESTS, "too_many"
    title = _("Too many attempts")
    advice = _("Please try again later.")
    retry_after = 10


class Overloaded(ShopError):
    """The lock or the row was not free in time; nothing has been decided."""

    status, code = HTTPStatus.SERVICE_UNAVAILABLE, "busy"
    title = _("Very high demand")
    advice = _("Nothing was changed. Please try again; you won't be charged twice.")
    retry_after = 1


class QueueFull(Overloaded):
    """All waiting slots of the sale are in use."""

    status, code = HTTPStatus.TOO_MANY_REQUESTS, "crowded"


class ServiceUnavailable(Overloaded):
    """A store is unavailable."""

    code = "store_down"
    title = _("We're having trouble right now")
    # The lost reply may have been that of a COMMIT.
    advice = _("Please try again in a moment. You won't be charged twice.")
    retry_after = 2


class Failed(ShopError):
    """A bug of the shop."""

    status, code = HTTPStatus.INTERNAL_SERVER_ERROR, "failed"
    title = _("Something went wrong")
    advice = _("The shop has logged the error. Please try again later; you won't be charged twice.")


@contextmanager
def refusing_lock_errors() -> Iterator[None]:
    """Raise Overloaded or ServiceUnavailable for a lock error before anything was decided."""
    try:
        yield
    except LockError as error:
        raise (ServiceUnavailable if isinstance(error, LockUnavailable) else Overloaded) from error


PROBLEM, PROBLEM_TYPE = "application/problem+json", "tag:flash-sale.example,2026:"
VERBS = ("buy", "pay", "payment", "cancel", "refund", "answer", "join", "address", "remind")
"""Last parts of URLs to which the form of the page above them is posted."""
UNAVAILABLE = (OperationalError, InterfaceError, RedisError, LockError)
# During a release, tables, columns and privileges may be missing, and columns may exist that the
# running code does not fill; a server may be read-only. The same request may succeed later.
# Not DataError: a value that does not fit its column is a bug of the shop, and fails each time.
MISFIT = (ProgrammingError, IntegrityError, InternalError)
STORE_ERRORS = (*UNAVAILABLE, *MISFIT)
UNCHECKED = (ValueError, LookupError, OverflowError, DataError)
"""Errors of the admins of Django and Celery Beat, which do not check all ids, numbers and names."""


def wants_json(request: HttpRequest) -> bool:
    """Return True if the client accepts or sends JSON instead of pages, or the URL has no page."""
    if request.path_info.startswith("/api/"):
        return True
    accept = request.META.get("HTTP_ACCEPT", "")
    is_json = "application/json" in accept or request.content_type == "application/json"
    return is_json and "text/html" not in accept


def answer(
    request: HttpRequest,
    error: ShopError,
    *,
    page: str = "",
    context: dict[str, Any] | None = None,
) -> HttpResponse:
    """Return a page, or JSON, that explains the error and what to do next.

    `page` and `context` may be those of the form, so that the input is kept.
    """
    if wants_json(request):
        # https://www.rfc-editor.org/rfc/rfc9457; `error` and `url` are members of our own.
        body = {"type": PROBLEM_TYPE + error.code, "status": error.status, "error": error.code}
        body |= {"title": str(error.title), "detail": str(error.advice), **error.more}
        if error.url:
            body["url"] = error.url
        response: HttpResponse = JsonResponse(body, status=error.status, content_type=PROBLEM)
    else:
        verb = request.path.rstrip("/").rpartition("/")[2]
        shown = {"error": error, "is_verb": verb in VERBS, **(context or {})}
        if isinstance(error, ServiceUnavailable) and context is None:
            shown["user"] = None  # the page must not ask the store again
        response = render(request, page or error.page, shown, status=error.status)
    if error.retry_after is not None:
        response["Retry-After"] = str(error.retry_after)
    return response


def refusal_of(error: BaseException | None) -> ShopError | None:
    """Return the refusal for an exception of a view or middleware; None if it is a bug."""
    if isinstance(error, ShopError):
        return error
    if isinstance(error, STORE_ERRORS):
        if isinstance(error, MISFIT):
            logger.error("Request failed: the database does not fit the code", exc_info=error)
        else:
            logger.warning("Request failed: a store is unavailable (%s)", error)
        return ServiceUnavailable()
    return None


class DomainErrorMiddleware(MiddlewareMixin):
    """Turn ShopError and store errors into responses, and what the admin does not check.

    Other exceptions are bugs and stay 500.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Explain a wrong method in a page or JSON, with the headers of the response."""
        if not isinstance(response, HttpResponseNotAllowed):
            return response
        explained = answer(request, WrongMethod())
        for name, value in response.items():
            explained.setdefault(name, value)
        return explained

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the response for an exception of a view."""
        refusal = refusal_of(error)
        if request.path.startswith("/admin/") and isinstance(error, UNCHECKED):
            logger.error("Request refused: it may be a bug of the admin", exc_info=error)
            refusal = BadInput()
        return answer(request, refusal) if refusal else None


def _explain(error: type[ShopError], request: HttpRequest, *_: Any, **__: Any) -> HttpResponse:
    with override(get_language_from_request(request)):  # LocaleMiddleware may not have run
        return answer(request, error())


bad_request = partial(_explain, BadInput)
not_allowed = partial(_explain, NotAllowed)
not_found = partial(_explain, NotFound)
csrf_failure = partial(_explain, Forgery)


def server_error(request: HttpRequest) -> HttpResponse:
    """Respond with a static page and 500, or with 503 if a middleware could not reach a store."""
    refusal = refusal_of(sys.exc_info()[1])
    if refusal or wants_json(request):
        return answer(request, refusal or Failed())
    page = loader.get_template("500.html").render({"shop_name": settings.SHOP_NAME})
    return HttpResponse(page, status=500)
