"""Pages for what went wrong outside the views, in the shop's own look."""

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
    """400."""
    return answer(request, BadInput())


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403, e.g. for customers who look into the staff's pages."""
    return answer(request, NotAllowed())


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form that our pages did not make."""
    return answer(request, Forgery())


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404."""
    return answer(request, NotFound())


def server_error(request: HttpRequest) -> HttpResponse:
    """500, a page that needs nothing to be shown; 503 when it was a store, below the views."""
    error = sys.exc_info()[1]
    if isinstance(error, ShopError):
        return answer(request, error)
    if isinstance(error, STORE_ERRORS):
        return answer(request, ServiceUnavailable())
    return HttpResponse(loader.get_template("500.html").render(), status=500)
