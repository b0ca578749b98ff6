"""Error pages for errors outside the views."""

import sys

from django.http import HttpRequest, HttpResponse
from django.template import loader

from shop.errors import (
    STORE_ERRORS,
    BadInput,
    Forgery,
    NotAllowed,
    NotFound,
    ServiceUnavailable,
    ShopError,
    answer,
)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Respond to a malformed request with 400."""
    return answer(request, BadInput())


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Respond with 403, e.g. to customers who open a page of staff."""
    return answer(request, NotAllowed())


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Respond with 403 to a form without a valid CSRF token."""
    return answer(request, Forgery())


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Respond with 404 to an unknown address."""
    return answer(request, NotFound())


def server_error(request: HttpRequest) -> HttpResponse:
    """Respond with a static page and 500, or with 503 if a middleware could not reach a store."""
    error = sys.exc_info()[1]
    if isinstance(error, ShopError):
        return answer(request, error)
    if isinstance(error, STORE_ERRORS):
        return answer(request, ServiceUnavailable())
    return HttpResponse(loader.get_template("500.html").render(), status=500)
