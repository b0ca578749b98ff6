"""Responses to errors outside the views."""

import sys
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template import loader

from shop.errors import BadInput, Forgery, NotAllowed, NotFound, ShopError, answer, refusal_of


def _respond_with(error: type[ShopError]) -> Callable[..., HttpResponse]:
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return answer(request, error())

    return respond


bad_request = _respond_with(BadInput)
not_allowed = _respond_with(NotAllowed)
not_found = _respond_with(NotFound)
csrf_failure = _respond_with(Forgery)


def server_error(request: HttpRequest) -> HttpResponse:
    """Respond with a static page and 500, or with 503 if a middleware could not reach a store."""
    if refusal := refusal_of(sys.exc_info()[1]):
        return answer(request, refusal)
    return HttpResponse(loader.get_template("500.html").render(), status=500)
