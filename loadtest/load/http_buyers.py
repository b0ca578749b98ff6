"""Buyers who have signed in, and the requests that their browsers send."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.core.cache import BaseCache, caches
from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.utils import timezone
from django.utils.crypto import get_random_string

from devservers import HOST
from shop.models import Sale, User
from shop.purchase import tokens

BACKEND = "django.contrib.auth.backends.ModelBackend"
KEPT = timedelta(days=1)
BATCH = 2000
"""Rows of one statement."""


@dataclass(frozen=True, slots=True)
class Buyer:
    """A customer, the browser's cookies, and the secret field of its forms."""

    user: User
    cookies: str
    session: str
    csrf: str

    def form(self, sale: Sale, *, key: str = "", is_first: bool = True) -> str:
        """Return the encoded form of the sale page for one unit."""
        key = key or f"{sale.slug}-{self.user.pk}"
        token, _ = tokens.issue(
            customer_id=self.user.pk,
            sale_id=sale.pk,
            key=key,
            session=self.session,
            is_first=is_first,
        )
        form = {
            "csrfmiddlewaretoken": self.csrf,
            "idempotency_key": key,
            "purchase_token": token,
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


def sign_in(count: int, name: str = "buyer") -> list[Buyer]:
    """So many new customers, `name`-0 and so on, each with a session as the sign-in page makes."""
    User.objects.bulk_create(
        [User(username=f"{name}-{n}", password="!") for n in range(count)],  # noqa: S106
        batch_size=BATCH,
    )
    return browsers_of(User.objects.filter(username__startswith=f"{name}-").order_by("pk"))


def browsers_of(users: Iterable[User]) -> list[Buyer]:
    """A browser for each, in which this customer has signed in; their forms share a secret."""
    store = _store()
    page = HttpRequest()
    csrf = get_token(page)
    secret = f"{settings.CSRF_COOKIE_NAME}={page.META['CSRF_COOKIE']}"
    ends = timezone.now() + KEPT
    buyers, sessions = [], []
    for user in users:
        data = {SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: BACKEND}
        data[HASH_SESSION_KEY] = user.get_session_auth_hash()
        key = get_random_string(32)
        cookies = f"{settings.SESSION_COOKIE_NAME}={key}; {secret}"
        buyers.append(Buyer(user, cookies, key, csrf))
        sessions.append(Session(session_key=key, session_data=store.encode(data), expire_date=ends))
        _cache().set(store.cache_key_prefix + key, data, KEPT.total_seconds())
    Session.objects.bulk_create(sessions, batch_size=BATCH)
    return buyers


def sign_out(buyers: Sequence[Buyer]) -> None:
    """End their sessions, also those that are cached."""
    for start in range(0, len(buyers), BATCH):
        keys = [buyer.session for buyer in buyers[start : start + BATCH]]
        Session.objects.filter(session_key__in=keys).delete()
        for key in keys:
            _cache().delete(_store().cache_key_prefix + key)


def _store() -> Any:
    return import_module(settings.SESSION_ENGINE).SessionStore()


def _cache() -> BaseCache:
    return caches[settings.SESSION_CACHE_ALIAS]


def requests(buyers: Sequence[Buyer], path: str, sale: Sale) -> Iterator[bytes]:
    """One attempt of each buyer; built now, so that the crowd need not."""
    return iter([buyer.request(path, sale) for buyer in buyers])
