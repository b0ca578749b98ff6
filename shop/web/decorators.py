"""Who may call a view, and how. The order is deliberate: method, customer, forgery.

A PUT to a form's address is 405 rather than 403, and somebody whose session has ended is sent to
sign in rather than accused.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from shop.errors import SignInFirst, WrongMethod, answer, wants_json
from shop.models import User

View = Callable[..., HttpResponseBase]


class CustomerRequest(HttpRequest):
    """What a view behind `acts` or `shows_own` gets: somebody who has signed in."""

    user: User


def only(*methods: str) -> Callable[[View], View]:
    """405, with a page that helps, for every other method."""

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method in methods:
                return view(request, *args, **kwargs)
            response = answer(request, WrongMethod())
            response["Allow"] = ", ".join(methods)
            return response

        return checked

    return decorate


def _sign_in(request: HttpRequest, then: str) -> HttpResponse:
    if wants_json(request):
        return answer(request, SignInFirst())
    return redirect_to_login(then)


def shows(view: View) -> View:
    """A page: GET and HEAD, no side effects; forms without their token are nobody's here."""
    return csrf_exempt(only("GET", "HEAD")(view))


def shows_own(view: View) -> View:
    """A page for customers who have signed in."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _sign_in(request, request.get_full_path())
        return view(request, *args, **kwargs)

    return shows(checked)


def acts(view: View) -> View:
    """A form's target at <page>/<verb>/, for customers who have signed in."""
    protected = csrf_protect(view)

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            page = request.path.rstrip("/").rpartition("/")[0]
            return _sign_in(request, f"{page}/")
        return protected(request, *args, **kwargs)

    return csrf_exempt(only("POST")(checked))
