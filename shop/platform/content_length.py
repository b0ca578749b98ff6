"""Refuse a Content-Length that is no byte count: Django's multipart parser would fail with 500."""

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

MAX_DIGITS = 18
"""Digits of a number that fits a signed 64-bit integer."""


def content_length_middleware(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Raise BadRequest if the Content-Length has more than MAX_DIGITS digits."""

    def serve(request: HttpRequest) -> HttpResponse:
        if len(request.META.get("CONTENT_LENGTH") or "") > MAX_DIGITS:
            raise BadRequest
        return get_response(request)

    return serve
