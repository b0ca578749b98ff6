"""Response headers that forbid all but own files and shared caches."""

from collections.abc import Callable

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
