"""The shop's refusals, and the one place where each becomes an answer.

ShopError            code      status
├── BadInput         bad_input    400   nothing was understood, nothing changed
│   └── UnsupportedType  unsupported_type  415
├── SignInFirst      sign_in      401
├── Forgery          forgery      403   the form did not come from our pages
├── NotAllowed       not_allowed  403
├── NotFound         not_found    404
├── WrongMethod      wrong_method 405   Allow
├── NotOpen          not_open     409   also once ended
├── SoldOut          sold_out     409
├── LimitReached     limit        409
├── InvalidTransition        wrong_step   409   the order is past that
├── InFlight         in_flight    409   Retry-After; an earlier send of the key is at work
├── KeyReused        key_reused   422   same key, other form
├── TooMany          too_many     429   Retry-After
└── Overloaded             busy         503   Retry-After; the same key may be sent again
    ├── QueueFull      crowded      429   so many wait already
    └── ServiceUnavailable    store_down   503
"""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from locking import IdempotencyError, KeyInFlight, LockError, LockUnavailable

logger = logging.getLogger("shop")


class ShopError(Exception):
    """A refusal that the customer can understand."""

    status = HTTPStatus.CONFLICT
    code = "refused"
    title = _("That did not work")
    advice: str | Promise = _("Please go back and try again.")
    retry_after: int | None = None

    def __init__(self, advice: str | None = None, *, retry_after: int | None = None) -> None:
        self.advice = advice or self.advice
        self.retry_after = self.retry_after if retry_after is None else retry_after
        super().__init__(str(self.advice))


class BadInput(ShopError):
    """The form cannot be understood."""

    status = HTTPStatus.BAD_REQUEST
    code = "bad_input"
    title = _("The form cannot be read")


class UnsupportedType(BadInput):
    """The body is of a type that nobody asked for."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "unsupported_type"


class SignInFirst(ShopError):
    """Only customers who signed in may do that."""

    status = HTTPStatus.UNAUTHORIZED
    code = "sign_in"
    title = _("Please sign in")
    advice = _("Sign in, then send it again.")


class Forgery(ShopError):
    """The form does not carry the secret of the page it claims to come from."""

    status = HTTPStatus.FORBIDDEN
    code = "forgery"
    title = _("This form did not come from our pages")
    advice = _("Allow cookies, open the page again and send the form from there.")


class NotAllowed(ShopError):
    """Somebody else may do that."""

    status = HTTPStatus.FORBIDDEN
    code = "not_allowed"
    title = _("That is not for you")
    advice = _("Sign in with an account that may do that.")


class WrongMethod(ShopError):
    """The address exists, but not for this HTTP method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED
    code = "wrong_method"
    title = _("This address only takes forms")
    advice = _("Open the page before it and press the button there.")


class NotFound(ShopError):
    """There is nothing there, or nothing that is yours."""

    status = HTTPStatus.NOT_FOUND
    code = "not_found"
    title = _("There is nothing here")
    advice = _("The page may have moved, or the address is mistyped.")


class NotOpen(ShopError):
    """The sale has not opened, or has ended."""

    code = "not_open"
    title = _("This sale is not open")
    advice = _("It opens by the shop's clock; the sale page counts down to it.")


class SoldOut(ShopError):
    """Nothing is left, or less than was asked for."""

    code = "sold_out"
    title = _("Sold out")
    advice = _("A few pieces may return if orders stay unpaid.")


class LimitReached(ShopError):
    """The customer has as many as one may have."""

    code = "limit"
    title = _("You have your share")
    advice = _("Each customer may buy only so many in this sale.")


class InvalidTransition(ShopError):
    """The order is past that."""

    code = "wrong_step"
    title = _("The order is past that")
    advice = _("It has been paid, cancelled or has expired already.")


class KeyReused(ShopError):
    """The same idempotency key came with another form."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "key_reused"
    title = _("This form was sent before with other contents")
    advice = _("Open the sale page again for a fresh form.")


class InFlight(ShopError):
    """An earlier send of the same form has not been answered yet."""

    code = "in_flight"
    title = _("This form is being worked on")
    advice = _("You sent it a moment ago. Try again: the same form counts only once.")
    retry_after = KeyInFlight.retry_after


class TooMany(ShopError):
    """More requests than one person sends."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "too_many"
    title = _("Too many tries")
    advice = _("Please wait a moment before you try again.")
    retry_after = 10


class Overloaded(ShopError):
    """Too much is going on; nothing has been decided."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "busy"
    title = _("Everyone is buying at once")
    advice = _("Nothing was bought and nothing is lost. Try again: the same form counts only once.")
    retry_after = 1


class QueueFull(Overloaded):
    """As many as can wait are waiting already."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "crowded"


class ServiceUnavailable(Overloaded):
    """A store that the shop needs does not answer."""

    code = "store_down"
    title = _("The shop has to catch its breath")
    # An answer that was lost may have been a yes.
    advice = _("Try again in a moment: a form counts only once, however often it is sent.")
    retry_after = 2


def key_refusal(error: IdempotencyError) -> ShopError:
    """What the shop says for an error of the idempotency keys."""
    return InFlight() if isinstance(error, KeyInFlight) else KeyReused()


def lock_refusal(error: LockError) -> Overloaded:
    """What the shop says when a lock kept it from deciding anything."""
    return ServiceUnavailable() if isinstance(error, LockUnavailable) else Overloaded()


VERBS = ("buy", "pay", "payment", "cancel", "answer")
"""The last part of an address that takes the form of the page before it."""
STORE_ERRORS = (OperationalError, InterfaceError, RedisError, LockError)


def wants_json(request: HttpRequest) -> bool:
    """Whether the client asked for, or speaks, JSON rather than pages."""
    accept = request.headers.get("Accept", "")
    if "application/json" in accept and "text/html" not in accept:
        return True
    return request.content_type == "application/json" and "text/html" not in accept


def answer(
    request: HttpRequest,
    error: ShopError,
    *,
    page: str = "shop/error.html",
    context: dict[str, Any] | None = None,
) -> HttpResponse:
    """A page, or JSON, that says what happened and what to do next.

    `page` with its `context` may be the one that the form came from, so that input is kept.
    """
    if wants_json(request):
        body = {"error": error.code, "title": str(error.title), "message": str(error.advice)}
        response: HttpResponse = JsonResponse(body, status=error.status)
    else:
        verb = request.path.rstrip("/").rpartition("/")[2]
        shown = {"error": error, "is_verb": verb in VERBS, **(context or {})}
        if isinstance(error, ServiceUnavailable) and context is None:
            shown |= {"user": None, "policy": None}  # the page must not ask the silent store again
        response = render(request, page, shown, status=error.status)
    if error.retry_after is not None:
        response["Retry-After"] = str(error.retry_after)
    return response


class DomainErrorMiddleware:
    """Turns refusals and silent stores into answers. Everything else is a bug and stays a 500."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer what a view raised."""
        if isinstance(error, ShopError):
            return answer(request, error)
        if isinstance(error, STORE_ERRORS):
            logger.warning("a store does not answer: %s", error)
            return answer(request, ServiceUnavailable())
        return None
