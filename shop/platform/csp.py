"""Content-Security-Policy and Permissions-Policy: own files only, nothing inline.

https://www.w3.org/TR/CSP3/. A view whose page needs more, e.g. a file with inline styles, sets the
header itself.
"""

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

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
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
"""https://www.w3.org/TR/permissions-policy/: features that no page uses."""


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Adds the headers to every response that has none."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Add the headers to the response."""
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        return response
