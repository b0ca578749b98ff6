"""Signed-in buyers, and the requests that their browsers send."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.utils import timezone
from django.utils.crypto import get_random_string

from devservers import HOST
from loadtest.load.sale import remove_sale
from shop.models import Sale, User
from shop.purchase import tokens

SESSION_AGE = timedelta(days=1)
BATCH = 2000
"""Rows per statement."""


@dataclass(frozen=True, slots=True)
class Buyer:
    """A customer, the cookies of the browser, and the CSRF token of its forms."""

    user: User
    cookies: str
    session: str
    csrf: str

    def form(
        self, sale: Sale, *, key: str = "", is_first: bool = True, attempt: int | None = None
    ) -> str:
        """Return the encoded form of the sale page for one unit.

        `attempt` 1 tells the shop that the buyer has not sent it before.
        """
        key = key or f"{sale.slug}-{self.user.pk}"
        token = tokens.issue(
            customer_id=self.user.pk,
            sale_id=sale.pk,
            key=key,
            session=self.session,
            is_first=is_first,
        )
        form = {"csrfmiddlewaretoken": self.csrf, "idempotency_key": key, "quantity": 1}
        if attempt:
            form["attempt"] = attempt
        return urlencode(form | {"purchase_token": token})

    def post(self, path: str, body: str, *, host: str = HOST) -> bytes:
        """Return the HTTP request of a form that asks for JSON."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {self.cookies}\r\n"
            "Accept: application/json\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    def submit(self, path: str, **fields: str) -> bytes:
        """Return the HTTP request of a form with these fields and the CSRF token."""
        return self.post(path, urlencode({"csrfmiddlewaretoken": self.csrf, **fields}))


def get(
    path: str, buyer: Buyer | None = None, *, accept: str = "text/html", encoding: str = "identity"
) -> bytes:
    """Return the HTTP request of a page, with the cookies of a buyer who is signed in."""
    cookie = f"Cookie: {buyer.cookies}\r\n" if buyer else ""
    return (
        f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: {accept}\r\n"
        f"Accept-Encoding: {encoding}\r\n{cookie}\r\n"
    ).encode()


def sign_in(count: int, name: str = "buyer") -> list[Buyer]:
    """Return `count` signed-in customers, `name`-0 and so on; create those that do not exist."""
    return [buyer for batch in batches(count, name) for buyer in batch]


def batches(count: int, name: str, size: int = BATCH) -> Iterator[list[Buyer]]:
    """Yield the buyers of `sign_in`, each batch in a transaction of its own."""
    for start in range(0, count, size):
        names = [f"{name}-{number}" for number in range(start, min(start + size, count))]
        with transaction.atomic():
            User.objects.bulk_create(
                [User(username=name, password="!") for name in names],  # noqa: S106
                ignore_conflicts=True,
            )
            buyers = signed_in(User.objects.filter(username__in=names).order_by("pk"))
        yield buyers


def signed_in(users: Iterable[User]) -> list[Buyer]:
    """Return a signed-in buyer for each user; they share one CSRF secret."""
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    page = HttpRequest()
    csrf = get_token(page)
    secret = f"{settings.CSRF_COOKIE_NAME}={page.META['CSRF_COOKIE']}"
    ends = timezone.now() + SESSION_AGE
    buyers, sessions = [], []
    for user in users:
        data = {SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0]}
        data[HASH_SESSION_KEY] = user.get_session_auth_hash()
        key = get_random_string(32)
        cookies = f"{settings.SESSION_COOKIE_NAME}={key}; {secret}"
        buyers.append(Buyer(user, cookies, key, csrf))
        sessions.append(Session(session_key=key, session_data=store.encode(data), expire_date=ends))
    Session.objects.bulk_create(sessions, batch_size=BATCH)
    return buyers


def clear_away(sale: Sale, buyers: Sequence[Buyer]) -> None:
    """Delete a sale, the sessions of its buyers, and the accounts that have ordered nothing else.

    The accounts in SQL: Django would also look for load tests, whose table only the lab has.
    """
    Sale.objects.filter(pk=sale.pk).update(closes_at=timezone.now())
    remove_sale(sale)
    for start in range(0, len(buyers), BATCH):
        batch = buyers[start : start + BATCH]
        Session.objects.filter(session_key__in=[buyer.session for buyer in batch]).delete()
        keys = [buyer.user.pk for buyer in batch]
        unused = User.objects.filter(pk__in=keys, orders=None).values_list("pk", flat=True)
        if marks := ", ".join(["%s"] * len(unused)):
            with connection.cursor() as cursor:
                cursor.execute(
                    f"DELETE FROM {User._meta.db_table} WHERE id IN ({marks})",  # noqa: S608
                    [*unused],
                )


def requests(buyers: Sequence[Buyer], path: str, sale: Sale) -> Iterator[bytes]:
    """Return the first attempt of each buyer, built in advance to save time under load."""
    return iter([buyer.post(path, buyer.form(sale, attempt=1)) for buyer in buyers])
