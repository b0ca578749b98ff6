"""Response headers that forbid all but own files, and the refusal of malformed request headers."""

import codecs
from collections.abc import Callable
from typing import Any

from django.core.exceptions import BadRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.utils.http import parse_header_parameters

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
        # Every page contains the name of its customer.
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response

    return serve


class Utf8Request(WSGIRequest):
    """A request whose text is UTF-8, even if its Content-Type declares another charset.

    Django's constructor decodes the query in the declared charset, where each error is a 500.
    """

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        declared = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        self.content_type, self.content_params = declared


def content_headers_middleware(get_response: Handler) -> Handler:
    """Raise BadRequest for a Content-Length beyond MAX_DIGITS digits or a charset but UTF-8.

    Django's parser of multipart forms would fail with 500.
    """

    def serve(request: HttpRequest) -> HttpResponse:
        if len(request.META.get("CONTENT_LENGTH") or "") > MAX_DIGITS:
            raise BadRequest
        try:
            declared = codecs.lookup((request.content_params or {}).get("charset", "utf-8"))
        except (LookupError, ValueError):
            raise BadRequest from None
        if declared.name != "utf-8":
            raise BadRequest
        return get_response(request)

    return serve
