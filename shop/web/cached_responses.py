"""Answers that are the same for everybody, made by Django once a second and filled in per buyer.

They go through all of Django's middleware, so that their headers are those of the view's answers.
What is the buyer's own (key, ticket, forgery secret) is a mark in the page. Nothing else of it may
be a buyer's: it is made for nobody in particular.
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
"""Seconds for which an answer is sent again; the stock bar in a page says how old it is."""
MAX_ANSWERS = 500
MAX_DIGITS = 18
"""Of a request's length: Python cannot be asked to read more than 63 bits count."""
SOMEBODY = SimpleNamespace(is_authenticated=True, is_staff=False, username="")
"""The user of such a page: whoever has signed in."""

# Nobody can send a text that contains one. HTML leaves "@", an address has "%40".
_MARK = f"@{secrets.token_hex(8)}-%s@"


def mark(name: str) -> str:
    """What stands in a prepared page where `fill` puts the buyer's own value."""
    return _MARK % name


class Answer(NamedTuple):
    """What WSGI wants to know; the headers without Content-Length and Location."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes

    def fill(self, values: Mapping[str, str]) -> "Answer":
        """With the values in place of their marks, as HTML and as part of an address."""
        body = self.body
        for name, value in values.items():
            body = body.replace(mark(name).encode(), escape(value).encode())
            in_address = quote(mark(name), safe="").encode()
            body = body.replace(in_address, quote(value, safe="").encode())
        return self._replace(body=body)

    def leading_to(self, url: str, receipt: dict[str, Any] | None) -> "Answer":
        """With that Location, and the receipt as its body."""
        body = b"" if receipt is None else json.dumps(receipt).encode()
        return self._replace(headers=[*self.headers, ("Location", url)], body=body)

    def send(self, start_response: Callable[..., object]) -> list[bytes]:
        """As the end of a WSGI application."""
        length = ("Content-Length", str(len(self.body)))
        start_response(self.status, [*self.headers, length])
        return [self.body]


Make = Callable[[WSGIRequest], HttpResponse]


class Handler(WSGIHandler):
    """Django, that can also be asked for an answer ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: RefreshingCache[Hashable, Answer] = RefreshingCache(MAX_ANSWERS)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> HttpResponseBase:
        """As Django's, which fails on a length that nobody can read; it is none."""
        if len(environ.get("CONTENT_LENGTH", "")) > MAX_DIGITS:
            environ["CONTENT_LENGTH"] = ""
        return super().__call__(environ, start_response)

    def prepared(self, request: WSGIRequest, *what: Hashable, make: Make) -> Answer:
        """What `make` answered to `what` at most MAX_AGE ago, in the shape that `request` wants.

        One thread makes it again, the others meanwhile send the old one. Raises RuntimeError when
        it cannot be made.
        """
        language = get_language_from_request(request)
        is_json, is_secure = wants_json(request), request.is_secure()
        shape = (*what, request.path, language, is_json, is_secure)

        def answer() -> Answer:
            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": request.path,
                "HTTP_HOST": request.get_host(),
                "HTTP_ACCEPT": "application/json" if is_json else "text/html",
                "HTTP_ACCEPT_LANGUAGE": language,
                "wsgi.url_scheme": "https" if is_secure else "http",
                "wsgi.input": BytesIO(),
            }
            return self._through_middleware(WSGIRequest(environ), make)

        return self.answers.get(shape, answer, fresh=MAX_AGE, max_age=math.inf)

    def _through_middleware(self, request: WSGIRequest, make: Make) -> Answer:
        request.make = make  # type: ignore[attr-defined]
        response = self.get_response(request)
        if response.cookies or response.status_code == 500:
            raise RuntimeError(f"An answer for everybody has failed or sets cookies: {response}")
        own = ("Content-Length", "Location")
        headers = [each for each in response.items() if each[0] not in own]
        status = f"{response.status_code} {response.reason_phrase}"
        return Answer(status, headers, response.content)  # type: ignore[attr-defined]

    def _get_response(self, request: WSGIRequest) -> HttpResponseBase:
        make: Make | None = getattr(request, "make", None)
        if make is not None:
            return make(request)
        return super()._get_response(request)  # type: ignore[misc,no-any-return]
