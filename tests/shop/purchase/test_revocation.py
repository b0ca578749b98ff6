"""Purchase tokens end with their web session, and with the account as it was."""

import time
from collections.abc import Callable

import pytest
from django.contrib.auth.hashers import make_password
from django.core.cache import cache
from django.db import OperationalError, close_old_connections, connection
from django.test import Client

from shop.models import Order, Sale, TokenRevocation, User
from shop.purchase import tokens
from shop.tasks import prune_sessions
from tests.shop.making import a_sale
from tests.shop.web.wsgi_browser import SIGNALS, Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]

PASSWORD = "a-red-kettle-9"  # noqa: S105
TOKEN = {"customer_id": 7, "session": "cookie", "issued_at": 1000.0}


def client_of(browser: Browser) -> Client:
    client = Client()
    client.cookies["sessionid"] = browser.session
    return client


def sign_out(browser: Browser) -> None:
    assert client_of(browser).post("/accounts/sign-out/").status_code == 302


def sign_in_as_another(browser: Browser) -> None:
    User.objects.create_user("wang", password=PASSWORD)
    form = {"username": "wang", "password": PASSWORD}
    assert client_of(browser).post("/accounts/sign-in/", form)["Location"] == "/"


def save(browser: Browser, *only: str, **fields: object) -> None:
    """Save the customer with other values; of all fields unless some are named."""
    for name, value in fields.items():
        setattr(browser.user, name, value)
    browser.user.save(update_fields=only or None)


def send(browser: Browser, sale: Sale, form: dict[str, object]) -> int:
    """Return the status of a purchase as the page's script sends it: 401 without a valid token."""
    for signal in SIGNALS:  # a test client has connected it again
        signal.disconnect(close_old_connections)
    return browser.json(sale, form).status


ENDS: dict[str, Callable[[Browser], object]] = {
    "sign-out": sign_out,
    "sign-in as another": sign_in_as_another,
    "password": lambda of: save(of, password=make_password(PASSWORD)),
    "password alone": lambda of: save(of, "password", password=make_password(PASSWORD)),
    "deactivated": lambda of: save(of, is_active=False),
    "deleted": lambda of: of.user.delete(),
    "deleted in bulk": lambda of: User.objects.filter(pk=of.user.pk).delete(),
}


@pytest.mark.parametrize("end", ENDS)
def test_token_ends_with_its_session_and_account(end, li):
    sale = a_sale()
    form = li.form(sale)
    ENDS[end](li)
    tokens.clear()  # as if MAX_AGE had passed
    assert send(li, sale, form) == 401
    assert not Order.objects.exists()


def save_the_profile(browser: Browser) -> None:
    form = {"first_name": "Li", "last_name": "", "email": browser.user.email}
    page = client_of(browser).post("/accounts/profile/", form)
    assert page["Location"] == "/accounts/profile/"


KEEPS: dict[str, Callable[[Browser], object]] = {
    "profile": save_the_profile,
    "all fields": lambda of: save(of, email="li@example.com"),
    "sign-in": lambda of: save(of, "last_login"),
    "sign-out elsewhere": lambda of: sign_out(Browser(of.user)),
    "another customer": lambda of: save(Browser(), password=make_password(PASSWORD)),
}


@pytest.mark.parametrize("change", KEEPS)
def test_other_changes_end_no_token(change, li):
    """Each revocation is a row that every process reads twice a second."""
    sale = a_sale()
    form = li.form(sale)
    KEEPS[change](li)
    tokens.clear()
    assert send(li, sale, form) == 201
    assert not TokenRevocation.objects.filter(subject=f"customer:{li.user.pk}").exists()
    assert client_of(li).get("/orders/").status_code == 200, "in the same session"


def test_token_of_a_later_sign_in_is_valid():
    changed_at = time.time()
    tokens.revoke_customer(7)
    old, early, late = changed_at - 60, changed_at + 30, changed_at + tokens.MARGIN + 5
    revoked = [
        tokens.is_revoked(customer_id=7, session="cookie", issued_at=issued_at)
        for issued_at in (old, early, late)
    ]
    assert revoked == [True, True, False], "clocks may differ by MARGIN"


def test_no_token_is_valid_while_revocations_cannot_be_read(li):
    def fail(*query: object) -> None:
        raise OperationalError(2006, "Server has gone away")

    with connection.execute_wrapper(fail):
        assert tokens.is_revoked(**TOKEN)
    assert not tokens.is_revoked(**TOKEN)


def test_slow_read_proves_nothing(monkeypatch):
    """A revocation may have been committed after the read began."""
    monkeypatch.setattr(tokens, "MAX_AGE", 0.0)
    assert tokens.is_revoked(**TOKEN)


@pytest.mark.django_db(transaction=True)
def test_session_that_cannot_be_revoked_does_not_end(li):
    def fail_to_write(execute, sql, *rest):
        if "tokenrevocation" in sql:
            raise OperationalError(2006, "Server has gone away")
        return execute(sql, *rest)

    client = client_of(li)
    with connection.execute_wrapper(fail_to_write):
        failed = client.post("/accounts/sign-out/")
    assert failed.status_code == 503
    assert "You may still be signed in." in failed.text
    assert client.get("/accounts/profile/").status_code == 200
    sign_out(li)


@pytest.mark.parametrize(
    ("engine", "is_signed_in"),
    [("shop.purchase.tokens", False), ("django.contrib.sessions.backends.cached_db", True)],
    ids=["shop", "control"],
)
def test_page_that_reads_a_session_while_it_ends_does_not_keep_it(engine, is_signed_in, settings):
    """The control keeps a copy of the session in the cache, which outlives the session."""
    settings.SESSION_ENGINE, settings.SESSION_CACHE_ALIAS = engine, "default"
    li, left = Browser(), [sign_out]

    def end_after_the_read(execute, sql, *rest):
        result = execute(sql, *rest)
        if "session_data" in sql and left:
            left.pop()(li)
        return result

    cache.clear()
    with connection.execute_wrapper(end_after_the_read):
        assert client_of(li).get("/orders/").status_code == 200
    assert not left
    assert client_of(li).get("/orders/").status_code == (200 if is_signed_in else 302)


def test_session_has_one_cookie(li):
    """MariaDB finds the row for other spellings, too, whose tokens a sign-out would not revoke."""
    assert client_of(li).get("/orders/").status_code == 200
    li.session = li.session.upper()
    assert client_of(li).get("/orders/").status_code == 302


def test_forged_session_cookies_leave_no_row():
    client = Client()
    client.cookies["sessionid"] = "x" * 32
    client.post("/accounts/sign-out/")
    assert not TokenRevocation.objects.exists()


def test_revocations_are_deleted_after_their_tokens_expire(settings):
    for name, age in (("old", 3600), ("new", settings.PURCHASE_TOKEN_SECONDS)):
        revoked_at = int(time.time()) - age
        TokenRevocation.objects.create(subject=name, revoked_at=revoked_at)
    prune_sessions()
    assert [row.subject for row in TokenRevocation.objects.all()] == ["new"]
