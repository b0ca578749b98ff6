"""Serves what everyone in a waiting room polls, before all that depends on the visitor."""

import re
from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from shop.errors import STORE_ERRORS, ShopError
from waiting_room import views

SHARED = re.compile(r"/sales/([-\w]+)/room/(status|record)\.json", re.ASCII)
VIEWS = {"status": views.status, "record": views.record}


def room_middleware(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Serve status.json and record.json without session, language or cookie.

    All other requests go on; so does a refusal, which the same view then raises again where
    DomainErrorMiddleware explains it.
    """

    def serve(request: HttpRequest) -> HttpResponseBase:
        found = SHARED.fullmatch(request.path_info)
        if found and request.method in ("GET", "HEAD"):
            try:
                return VIEWS[found[2]](request, slug=found[1])
            except (ShopError, *STORE_ERRORS):
                pass
        return get_response(request)

    return serve
