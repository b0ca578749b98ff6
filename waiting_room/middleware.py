"""Serves what everyone in a waiting room polls, before all that depends on the visitor."""

import re
from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from shop.errors import STORE_ERRORS, ShopError
from waiting_room import views

SHARED = {
    re.compile(r"/sales/(?P<slug>[-\w]+)/room/" + name + r"\.json", re.ASCII): view
    for name, view in {
        "status": views.status,
        "record": views.record,
        "positions-(?P<prefix>[0-9a-f]{2})": views.positions,
    }.items()
}


def room_middleware(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Serve status, record and positions without session, language or cookie.

    All other requests go on; so does a refusal, which the same view then raises again where
    DomainErrorMiddleware explains it.
    """

    def serve(request: HttpRequest) -> HttpResponseBase:
        if request.path_info.endswith(".json") and request.method in ("GET", "HEAD"):
            for path, view in SHARED.items():
                if found := path.fullmatch(request.path_info):
                    try:
                        return view(request, **found.groupdict())
                    except (ShopError, *STORE_ERRORS):
                        break
        return get_response(request)

    return serve
