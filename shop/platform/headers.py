"""Response headers that forbid all but own files, and the refusal of a malformed Content-Length."""

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # Pico's icons are data URLs
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ]
)
"""https://www.w3.org/TR/CSP3/: own files only, nothing inline."""
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
"""https://www.w3.org/TR/permissions-policy/: features that no page uses."""
MAX_DIGITS = 18
"""Digits of a number that fits a signed 64-bit integer."""

Handler = Callable[[HttpRequest], HttpResponse]


def policy_middleware(get_response: Handler) -> Handler:
    """Add the policies to every response; a view whose page needs more sets the header itself."""

    def serve(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        return response

    return serve


def content_length_middleware(get_response: Handler) -> Handler:
    """Raise BadRequest if the Content-Length has more than MAX_DIGITS digits.

    Django's multipart parser would fail with 500.
    """

    def serve(request: HttpRequest) -> HttpResponse:
        if len(request.META.get("CONTENT_LENGTH") or "") > MAX_DIGITS:
            raise BadRequest
        return get_response(request)

    return serve
