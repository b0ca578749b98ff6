"""A browser that calls the WSGI application, and a count of messages to Redis."""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.cookies import SimpleCookie
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from redis.connection import Connection as RedisConnection

from locking.backends.redis.connection import Connection as LockConnection
from locking.policy import active
from shop.models import Sale, User
from shop.purchase import admission, tokens
from shop.wsgi import application
from tests.shop.making import a_customer, signed_in
from waiting_room import service

FORM = "application/x-www-form-urlencoded"
SIGNALS = (request_started, request_finished)


class Browser:
    """The browser of a customer with an open sale page: form, cookies and WSGI application."""

    def __init__(self, user: User | None = None) -> None:
        self.user = user or a_customer()
        self.cookies: SimpleCookie = SimpleCookie({"csrftoken": secrets.token_hex(16)})
        self.session = signed_in(self.user).cookies["sessionid"].value
        self.cookies["sessionid"] = self.session
        self.secret = {"csrfmiddlewaretoken": self.cookies["csrftoken"].value}

    def form(self, sale: Sale, key: str = "k", quantity: int = 1, *, is_first: bool = True) -> dict:
        token = tokens.issue(
            customer_id=self.user.pk,
            sale_id=sale.pk,
            key=key,
            session=self.session,
            is_first=is_first,
        )
        form = {"idempotency_key": key, "quantity": quantity, "purchase_token": token}
        return form | self.secret

    def send(self, sale: Sale, form: Any = None, *, accept: str = "text/html", **environ: Any):
        form = self.form(sale) if form is None else form
        body = form if isinstance(form, bytes) else urlencode(form, doseq=True).encode()
        asked = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": f"/sales/{sale.slug}/buy/",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "HTTP_HOST": "localhost",
            "HTTP_ACCEPT": accept,
            "HTTP_COOKIE": self.cookies.output(header="", sep=";").strip(),
            "CONTENT_TYPE": FORM,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(body),
            **environ,
        }
        started: list[Any] = []
        sent = application(asked, lambda status, headers, *_: started.extend((status, headers)))
        text = b"".join(sent).decode()
        getattr(sent, "close", lambda: None)()
        return SimpleNamespace(status=int(started[0][:3]), headers=dict(started[1]), text=text)

    def json(self, sale: Sale, form: Any = None, **environ: Any):
        answer = self.send(sale, form, accept="application/json", **environ)
        return SimpleNamespace(**{**vars(answer), "body": json.loads(answer.text)})

    def send_without_token(self, sale: Sale, form: dict[str, Any], **options: Any):
        """Send the form without its token, so that the view responds."""
        return self.send(sale, {**form, "purchase_token": ""}, **options)


def keep_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a purchase reads into memory outlast the test."""
    for name in ("FRESH", "MAX_AGE"):
        monkeypatch.setattr(service, f"ROOMS_{name}", 600)
        for module in (active, admission, tokens):
            monkeypatch.setattr(module, name, 600)


@contextmanager
def counted_messages() -> Iterator[list[object]]:
    """Count this thread's messages to Redis, those of cache and limits and those of locks."""
    sent: list[object] = []
    thread = threading.get_ident()
    with ExitStack() as stack:
        for owner, name in ((RedisConnection, "send_packed_command"), (LockConnection, "request")):
            real = getattr(owner, name)

            def send(self: Any, *args: Any, _real: Any = real, **options: Any) -> Any:
                sent.extend(args[:1] if threading.get_ident() == thread else [])
                return _real(self, *args, **options)

            stack.enter_context(patch.object(owner, name, send))
        yield sent


@pytest.fixture(autouse=True)
def alone(in_force: None) -> Iterator[None]:
    """Start without cached responses, and keep the test's database connection open."""
    for signal in SIGNALS:
        signal.disconnect(close_old_connections)
    yield
    for signal in SIGNALS:
        signal.connect(close_old_connections)


@pytest.fixture
def li() -> Browser:
    """Return a customer's browser."""
    return Browser()
