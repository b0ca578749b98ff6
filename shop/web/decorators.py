"""Access checks of the views, in this order: method, sign-in, CSRF token.

So a PUT to a form's address is answered with 405 instead of 403, and a customer whose session has
ended is sent to the sign-in page instead of getting a CSRF error.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST, require_safe

from shop.errors import SignInFirst, answer, wants_json
from shop.models import User

View = Callable[..., HttpResponseBase]


class CustomerRequest(HttpRequest):
    """The request of a view behind `customer_page` or `customer_form`: the user has signed in."""

    user: User


def public_page(view: View) -> View:
    """Allow GET and HEAD only; without side effects, the page needs no CSRF check."""
    return csrf_exempt(require_safe(view))


def live_page(view: View) -> View:
    """Allow GET and HEAD only, uncached."""
    return never_cache(public_page(view))


def customer_page(view: View) -> View:
    """Allow GET and HEAD, uncached, for signed-in customers; send others to the sign-in page."""
    return live_page(_signed_in(view, HttpRequest.get_full_path))


def customer_form(view: View) -> View:
    """Allow POST with a CSRF token, uncached, for signed-in customers.

    The address is <page>/<verb>/; others are sent to sign in and then to <page>/.
    """
    return never_cache(csrf_exempt(require_POST(_signed_in(csrf_protect(view), _page_of_form))))


def visitor_form(view: View) -> View:
    """Allow POST, from customers with a CSRF token.

    A visitor needs none, so that a page with the form can be the same for all visitors. A form on
    another site is that of a visitor, too: browsers send it without the session's cookie.
    """
    checked = csrf_protect(view)

    @wraps(view)
    def serve(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return (checked if request.user.is_authenticated else view)(request, *args, **kwargs)

    return csrf_exempt(require_POST(serve))


def _page_of_form(request: HttpRequest) -> str:
    return request.path.rstrip("/").rpartition("/")[0] + "/"


def _signed_in(view: View, next_page: Callable[[HttpRequest], str]) -> View:
    """Send customers who have not signed in to the sign-in page, and from there to `next_page`."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        if wants_json(request):
            return answer(request, SignInFirst())
        return redirect_to_login(next_page(request))

    return checked
