"""Serves what everyone in a waiting room polls, before all that depends on the visitor."""

from collections.abc import Callable
from contextlib import suppress

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import resolve

from shop.errors import STORE_ERRORS, ShopError

SHARED = ("room-status", "room-record", "room-positions")
"""The names of their URLs."""


def room_middleware(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Serve status, record and positions without session, language or cookie.

    All other requests go on; so does a refusal, which the same view then raises again where
    DomainErrorMiddleware explains it.
    """

    def serve(request: HttpRequest) -> HttpResponseBase:
        if request.path_info.endswith(".json") and request.method in ("GET", "HEAD"):
            with suppress(Http404, ShopError, *STORE_ERRORS):
                found = resolve(request.path_info)
                if found.url_name in SHARED:
                    served: HttpResponseBase = found.func(request, **found.kwargs)
                    return served
        return get_response(request)

    return serve
