"""Purchase tokens: what they are bound to, their renewal by the sale page, and their end."""

import re
import time
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth.hashers import make_password
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.db import OperationalError, close_old_connections, connection
from django.test import Client
from django.utils import timezone

from shop.models import Order, Sale, TokenRevocation, User
from shop.purchase import tokens
from shop.tasks import prune_sessions
from tests.shop.making import PASSWORD, a_sale, hidden_fields, sign_in, signed_in
from tests.shop.web.wsgi_browser import SIGNALS, Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]
SOLD_TO = {"customer_id": 7, "sale_id": 3, "key": "k", "session": "cookie", "is_first": True}


def test_token_contains_what_it_was_issued_for(settings) -> None:
    began, text = time.time(), tokens.issue(**SOLD_TO)
    assert tokens.read(text, key="k", session="cookie") == (7, 3, True)
    issued_at = int(text.split(".")[3]) - settings.PURCHASE_TOKEN_SECONDS
    assert began - 1 < issued_at <= time.time() + 1


def changed(text: str, place: int, to: str) -> str:
    parts = text.split(".")
    return ".".join([*parts[:place], to, *parts[place + 1 :]])


CHANGES: dict[str, Callable[[str], dict[str, str]]] = {
    "customer": lambda text: {"text": changed(text, 0, "8")},
    "sale": lambda text: {"text": changed(text, 1, "4")},
    "hint": lambda text: {"text": changed(text, 2, "0")},
    "expiry": lambda text: {"text": changed(text, 3, "9999999999")},
    "signature": lambda text: {"text": f"{text[:-43]}{'A' * 43}"},
    "longer": lambda text: {"text": f"{text}A"},
    "NUL": lambda text: {"text": f"{text}\0"},
    "5,000 digits": lambda text: {"text": changed(text, 0, "9" * 5000)},
    "wide digits": lambda text: {"text": text.replace("7", "７")},
    "another form's": lambda text: {"key": "l"},
    "another session's": lambda text: {"session": "another"},
    "no session": lambda text: {"session": ""},
}


@pytest.mark.parametrize("change", CHANGES)
def test_token_with_any_change_is_invalid(change) -> None:
    text = tokens.issue(**SOLD_TO)
    sent = {"text": text, "key": "k", "session": "cookie", **CHANGES[change](text)}
    assert tokens.read(sent.pop("text"), **sent) is None


def test_cookie_and_key_cannot_be_exchanged() -> None:
    """A part of the cookie cannot pass for a part of the key."""
    text = tokens.issue(**{**SOLD_TO, "session": "a", "key": "b\nc"})
    assert tokens.read(text, session="a\nb", key="c") is None


def test_token_expires(settings, monkeypatch) -> None:
    text = tokens.issue(**SOLD_TO)
    late = time.time() + settings.PURCHASE_TOKEN_SECONDS + 1
    monkeypatch.setattr(tokens.time, "time", lambda: late)
    assert tokens.read(text, key="k", session="cookie") is None


@pytest.mark.parametrize("is_fallback", [True, False])
def test_token_survives_the_rotation_of_the_secret_key(is_fallback, settings) -> None:
    text = tokens.issue(**SOLD_TO)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if is_fallback else []
    settings.SECRET_KEY += "another"
    assert (tokens.read(text, key="k", session="cookie") is not None) is is_fallback


@pytest.fixture
def buyer(db) -> Client:
    return signed_in()


def is_good(client: Client, form: dict[str, str]) -> bool:
    session, key = client.cookies["sessionid"].value, form["idempotency_key"]
    return tokens.read(form["purchase_token"], key=key, session=session) is not None


@pytest.mark.parametrize("opens_in", [600, -60], ids=["before", "open"])
def test_sale_page_has_a_token_for_customers_only(buyer, client, opens_in) -> None:
    sale = a_sale(opens_in=opens_in)
    assert is_good(buyer, hidden_fields(buyer.get(f"/sales/{sale.slug}/").text))
    assert "purchase_token" not in client.get(f"/sales/{sale.slug}/").text


def test_open_page_renews_its_token(buyer, settings) -> None:
    """A customer who waits an hour for the opening still has a valid token."""
    form = hidden_fields(page := buyer.get(f"/sales/{a_sale(opens_in=3600).slug}/").text)
    renewal = unescape(re.search(r'hx-get="([^"]+/token/[^"]+)"', page)[1])
    assert f'"load delay:{settings.PURCHASE_TOKEN_SECONDS // 2}s"' in page
    renewed = buyer.get(renewal).text
    assert is_good(buyer, {**form, **hidden_fields(renewed)})
    assert hidden_fields(renewed)["purchase_token"]
    assert f'hx-get="{renewal}"' in renewed, "and again"
    assert (Client().get(renewal).status_code, Client().get(renewal).text) == (204, "")


def test_invalid_key_gets_no_token(buyer) -> None:
    path = f"/sales/{a_sale().slug}/token/?key="
    for key in ("", "x" * 256, "%00"):
        assert buyer.get(path + key).status_code == 400


# --- revocation -------------------------------------------------------------------------------

TOKEN = {"customer_id": 7, "session": "cookie", "issued_at": 1000.0}


def client_of(browser: Browser) -> Client:
    client = Client()
    client.cookies["sessionid"] = browser.session
    return client


def sign_out(browser: Browser) -> None:
    assert client_of(browser).post("/accounts/sign-out/").status_code == 302


def sign_in_as_another(browser: Browser) -> None:
    User.objects.create_user("wang", password=PASSWORD)
    assert sign_in(client_of(browser))["Location"] == "/"


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
    tokens.revoke_customer(7)
    changed_at = time.time()
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


def test_expired_sessions_and_what_no_token_needs_are_deleted(settings):
    kept = settings.PURCHASE_TOKEN_SECONDS + 2 * tokens.MARGIN
    for name, age in (("old", kept + 1), ("new", kept - 30)):
        revoked_at = int(time.time()) - age
        TokenRevocation.objects.create(subject=name, revoked_at=revoked_at)
        ends = timezone.now() + timedelta(hours=1 if name == "new" else -1)
        Session.objects.create(session_key=name, session_data="", expire_date=ends)
    prune_sessions()
    assert [row.pk for row in Session.objects.all()] == ["new"]
    assert [row.subject for row in TokenRevocation.objects.all()] == ["new"]
