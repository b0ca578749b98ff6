"""Responses that are equal for all visitors, or for all viewers, rendered once for many requests.

A process keeps each for half a second, and so does nginx (deploy/nginx.conf). The request that
renders one has lost its cookies and all that `SharedPage` does not name, so that the response
cannot depend on them.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from django.conf import settings
from django.contrib.messages.storage.cookie import CookieStorage
from django.http import HttpRequest, HttpResponse
from django.utils.translation import get_language, get_language_from_request

from shop.platform.cache import RefreshingCache

T = TypeVar("T")

FRESH = 0.4
"""Seconds after which one thread renders the page again while the others use the previous one."""
MAX_AGE = 0.6
"""Seconds for which a process uses what it has rendered."""
MAX_PAGES = 1000
PERSONAL = frozenset({settings.SESSION_COOKIE_NAME, CookieStorage.cookie_name})
"""Cookies without which a request is that of a visitor."""


class SharedPage(NamedTuple):
    """Pages whose response depends on host, path and language, and on a query that matches."""

    path: re.Pattern[str]
    query: re.Pattern[str] | None = None
    """Another query is not shared; None: the page ignores it."""
    is_for_all: bool = False
    """False: only visitors get the shared response, and customers a page of their own."""


class Rendered(NamedTuple):
    """A response without its request."""

    content: bytes
    headers: list[tuple[str, str]]


class NotShared(Exception):
    """The response is only for the request that it was rendered for."""


shared_pages = [
    SharedPage(re.compile(r"/|/products/[-\w]+/|/sales/[-\w]+/", re.ASCII)),
    SharedPage(re.compile(r"/api/sales/([-\w]+/stock/)?", re.ASCII), is_for_all=True),
    SharedPage(re.compile("/products/"), re.compile(r"(page=[0-9]{1,2})?")),
    SharedPage(re.compile("/live/"), re.compile(r"layout=[0-9a-f]{1,8}"), is_for_all=True),
    SharedPage(
        re.compile(r"/sales/[-\w]+/stock/", re.ASCII),
        re.compile(r"phase=[a-z_]{1,10}&price=[0-9.]{1,20}&opens=[0-9]{1,10}"),
        is_for_all=True,
    ),
]
"""Applications add their own when they are ready."""
_rendered: RefreshingCache[tuple[str, ...], Rendered] = RefreshingCache(MAX_PAGES)
_fragments: RefreshingCache[tuple[str, str], Any] = RefreshingCache(MAX_PAGES)


def fragment(name: str, render: Callable[[], T]) -> T:
    """Return a part of pages that is the same for all viewers of a language."""
    key = name, get_language() or ""
    return cast(T, _fragments.get(key, render, fresh=FRESH, max_age=MAX_AGE))


def clear() -> None:
    """Drop all pages and fragments."""
    _rendered.clear()
    _fragments.clear()


class SharedPageMiddleware:
    """Serves shared pages before all that depends on the visitor; other requests go on."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the page from memory or render it, or call the next middleware."""
        page = _find(request)
        if page is None:
            return self.get_response(request)
        language = get_language_from_request(request)
        if page.query is None:
            request.META["QUERY_STRING"] = ""
        key = request.scheme or "", request.get_host(), request.get_full_path(), language
        own: list[HttpResponse] = []
        try:
            render = partial(self._render, request, language, own)
            rendered = _rendered.get(key, render, fresh=FRESH, max_age=MAX_AGE)
        except NotShared:
            return own[0] if own else self.get_response(request)
        return own[0] if own else HttpResponse(rendered.content, headers=dict(rendered.headers))

    def _render(self, request: HttpRequest, language: str, own: list[HttpResponse]) -> Rendered:
        request.META |= {"HTTP_ACCEPT_LANGUAGE": language, "HTTP_COOKIE": ""}
        request.COOKIES, request.method = {}, "GET"
        response = self.get_response(request)
        own.append(response)
        if response.status_code != 200 or response.cookies or response.streaming:
            raise NotShared
        response.headers.setdefault("X-Accel-Expires", "1")  # nginx may keep it, too
        return Rendered(response.content, list(response.headers.items()))


def _find(request: HttpRequest) -> SharedPage | None:
    """Return the shared page that is asked for, or None if the response is not to be shared."""
    if request.method not in ("GET", "HEAD"):
        return None
    for page in shared_pages:
        if page.path.fullmatch(request.path_info):
            query = request.META.get("QUERY_STRING", "")
            if page.query is not None and not page.query.fullmatch(query):
                return None
            return page if page.is_for_all or not PERSONAL & request.COOKIES.keys() else None
    return None
