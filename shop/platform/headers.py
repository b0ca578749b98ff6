"""Response headers that forbid all but own files and shared caches."""

from collections.abc import Callable, Mapping

from django.http import HttpRequest, HttpResponse

SOURCES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",  # Pico's icons are data URLs
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}
"""https://www.w3.org/TR/CSP3/: own files only, nothing inline."""
POLICY = "; ".join(f"{directive} {sources}" for directive, sources in SOURCES.items())
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
"""https://www.w3.org/TR/permissions-policy/: features that no page uses."""


def allow(response: HttpResponse, sources: Mapping[str, str], payment: str) -> HttpResponse:
    """Allow a page further sources, by directive, and an origin to take payments in it."""
    more = {name: f"{SOURCES.get(name, '')} {wanted}".strip() for name, wanted in sources.items()}
    policy = "; ".join(f"{name} {allowed}" for name, allowed in (SOURCES | more).items())
    response.headers["Content-Security-Policy"] = policy
    if payment:
        allowed = PERMISSIONS.replace("payment=()", f'payment=(self "{payment}")')
        response.headers["Permissions-Policy"] = allowed
    return response


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
