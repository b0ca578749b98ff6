"""Responses to purchases that are the same for all customers, rendered once a second.

Each passes through all of Django's middleware, so its headers are those of the view's response.
Values that differ per customer (idempotency key, purchase token, CSRF token) are placeholders.
"""

import json
import math
import secrets
from collections.abc import Callable, Hashable, Mapping
from html import escape
from io import BytesIO
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote

from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import get_language_from_request

from locking.refresh import RefreshingCache
from shop.errors import wants_json

MAX_AGE = 1.0
"""Seconds after which a response is rendered again; the stock bar on the page shows its age."""
MAX_RESPONSES = 500
MAX_LENGTH_DIGITS = 18
"""Digits of a Content-Length that Python can still read as a byte count."""
TEMPLATE_USER = SimpleNamespace(is_authenticated=True, is_staff=False, username="")
"""The user of a cached page: signed in, without a name."""

# Random, so that no customer can send it. HTML does not escape "@"; in a URL it is "%40".
_PLACEHOLDER = f"@{secrets.token_hex(8)}-%s@"

View = Callable[[WSGIRequest], HttpResponse]


def placeholder(name: str) -> str:
    """Return the text in a cached page that `render` replaces with the customer's value."""
    return _PLACEHOLDER % name


class CachedResponse(NamedTuple):
    """A response for WSGI; `headers` lacks Content-Length and Location."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes

    def render(self, values: Mapping[str, str]) -> "CachedResponse":
        """Return the response with the placeholders replaced, escaped for HTML and for URLs."""
        body = self.body
        for name, value in values.items():
            body = body.replace(placeholder(name).encode(), escape(value).encode())
            in_url = quote(placeholder(name), safe="").encode()
            body = body.replace(in_url, quote(value, safe="").encode())
        return self._replace(body=body)

    def with_location(self, url: str, receipt: dict[str, Any] | None) -> "CachedResponse":
        """Return the response with a Location header, and the receipt as its JSON body."""
        body = b"" if receipt is None else json.dumps(receipt).encode()
        return self._replace(headers=[*self.headers, ("Location", url)], body=body)

    def send(self, start_response: Callable[..., object]) -> list[bytes]:
        """Start the WSGI response and return its body."""
        length = ("Content-Length", str(len(self.body)))
        start_response(self.status, [*self.headers, length])
        return [self.body]


class CachingHandler(WSGIHandler):
    """Django's WSGI handler, which can also render a response for later requests."""

    def __init__(self) -> None:
        super().__init__()
        self.responses: RefreshingCache[Hashable, CachedResponse] = RefreshingCache(MAX_RESPONSES)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> HttpResponseBase:
        """Serve the request; Django fails on an overlong Content-Length, so it is dropped here."""
        if len(environ.get("CONTENT_LENGTH", "")) > MAX_LENGTH_DIGITS:
            environ["CONTENT_LENGTH"] = ""
        return super().__call__(environ, start_response)

    def cached(self, request: WSGIRequest, *key: Hashable, view: View) -> CachedResponse:
        """Return the response of `view` for `key`, path, language, scheme and content type.

        After MAX_AGE one thread renders it again while the others send the previous one. Raise
        RuntimeError if the view fails or sets cookies.
        """
        language = get_language_from_request(request)
        is_json, is_secure = wants_json(request), request.is_secure()

        def read() -> CachedResponse:
            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": request.path,
                "HTTP_HOST": request.get_host(),
                "HTTP_ACCEPT": "application/json" if is_json else "text/html",
                "HTTP_ACCEPT_LANGUAGE": language,
                "wsgi.url_scheme": "https" if is_secure else "http",
                "wsgi.input": BytesIO(),
            }
            return self._run_middleware(WSGIRequest(environ), view)

        cache_key = (*key, request.path, language, is_json, is_secure)
        return self.responses.get(cache_key, read, fresh=MAX_AGE, max_age=math.inf)

    def _run_middleware(self, request: WSGIRequest, view: View) -> CachedResponse:
        request.cached_view = view  # type: ignore[attr-defined]
        response = self.get_response(request)
        if response.cookies or response.status_code == 500:
            raise RuntimeError(f"The response failed or sets cookies: {response}")
        per_customer = ("Content-Length", "Location")
        headers = [each for each in response.items() if each[0] not in per_customer]
        status = f"{response.status_code} {response.reason_phrase}"
        return CachedResponse(status, headers, response.content)  # type: ignore[attr-defined]

    def _get_response(self, request: WSGIRequest) -> HttpResponseBase:
        view: View | None = getattr(request, "cached_view", None)
        if view is not None:
            return view(request)
        return super()._get_response(request)  # type: ignore[misc,no-any-return]
