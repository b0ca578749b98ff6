"""Purchase tokens: what they are bound to, and their renewal by the sale page."""

import re
import time
from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client

from shop.purchase import tokens
from tests.shop.making import a_sale, hidden_fields, signed_in

pytestmark = pytest.mark.django_db
SOLD_TO = {"customer_id": 7, "sale_id": 3, "key": "k", "session": "cookie", "is_first": True}


def test_token_contains_what_it_was_issued_for(settings) -> None:
    text = tokens.issue(**SOLD_TO)
    assert tokens.read(text, key="k", session="cookie") == (7, 3, True)
    expires = int(text.split(".")[3])
    assert expires == pytest.approx(time.time() + settings.PURCHASE_TOKEN_SECONDS, abs=5)


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
