"""Buyers who have signed in, and the requests that their browsers send."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.db import transaction
from django.http import HttpRequest
from django.middleware.csrf import get_token

from loadtest.processes import HOST
from shop import tickets
from shop.models import Sale, User

BACKEND = "django.contrib.auth.backends.ModelBackend"


@dataclass(frozen=True, slots=True)
class Buyer:
    """A customer, the browser's cookies, and the secret field of its forms."""

    user: User
    cookies: str
    session: str
    csrf: str

    def form(self, sale: Sale) -> str:
        """What the form of the sale page sends for one piece."""
        key = f"{sale.slug}-{self.user.pk}"
        ticket, _ = tickets.issue(
            customer_id=self.user.pk, sale_id=sale.pk, key=key, session=self.session, is_first=True
        )
        form = {
            "csrfmiddlewaretoken": self.csrf,
            "idempotency_key": key,
            "ticket": ticket,
            "quantity": 1,
        }
        return urlencode(form)

    def request(self, path: str, sale: Sale) -> bytes:
        """That form as it goes over the wire."""
        return self.post(path, self.form(sale))

    def post(self, path: str, body: str, *, host: str = HOST) -> bytes:
        """Any form, asking for JSON."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {self.cookies}\r\n"
            "Accept: application/json\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()


def sign_in(count: int) -> list[Buyer]:
    """So many new customers, each with a session as the sign-in page makes it."""
    User.objects.bulk_create(
        [User(username=f"buyer-{n}", password="!") for n in range(count)],  # noqa: S106
        batch_size=1000,
    )
    with transaction.atomic():
        return [browser_of(user) for user in User.objects.order_by("pk")]


def browser_of(user: User) -> Buyer:
    """A browser in which this customer has signed in."""
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = BACKEND
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    page = HttpRequest()
    csrf = get_token(page)
    cookies = {
        settings.SESSION_COOKIE_NAME: session.session_key,
        settings.CSRF_COOKIE_NAME: page.META["CSRF_COOKIE"],
    }
    sent = "; ".join(f"{name}={value}" for name, value in cookies.items())
    return Buyer(user, sent, str(session.session_key), csrf)


def requests(buyers: Sequence[Buyer], path: str, sale: Sale) -> Iterator[bytes]:
    """One attempt of each buyer; built now, so that the crowd need not."""
    return iter([buyer.request(path, sale) for buyer in buyers])
