"""Requests that the purchase token middleware passes to the view."""

from __future__ import annotations

import pytest
from django.utils import timezone

from shop.models import Order
from shop.purchase import tokens
from shop.web.purchase import MAX_BODY
from tests.shop.making import a_sale
from tests.shop.web.wsgi_browser import FORM, Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


def test_refusal_shows_the_orders_of_the_customer(li):
    sale = a_sale(limit=1)
    li.send(sale)
    page = li.send(sale, li.form(sale, "l"))
    assert (page.status, li.django.asked) == (409, 0)
    assert "Purchase limit reached" in page.text
    assert Order.objects.get().get_absolute_url() in page.text


def test_fallback_request_is_counted_once(li, settings):
    settings.BUY_LIMIT = "4/minute"
    sale = a_sale(limit=1)
    statuses = [li.send(sale, {**li.form(sale, f"{n}"), **li.secret}).status for n in range(5)]
    assert statuses == [303, 409, 409, 409, 429]


DOUBTFUL = {
    "no token": {"purchase_token": ""},
    "two tokens": {"purchase_token": ["x", "x"]},
    "no such token": {"purchase_token": "1.1.1.9999999999." + "x" * 43},
    "another key": {"idempotency_key": "l"},
    "large": {"x": "x" * MAX_BODY},
    "no session": {"HTTP_COOKIE": ""},
    "another session": {"HTTP_COOKIE": f"sessionid={'x' * 32}"},
    "two keys": {"HTTP_IDEMPOTENCY_KEY": "l"},
    "a charset": {"CONTENT_TYPE": f"{FORM}; charset=utf-16"},
    "JSON": {"CONTENT_TYPE": "application/json"},
    "no type": {"CONTENT_TYPE": ""},
    "no length": {"CONTENT_LENGTH": ""},
    "a false length": {"CONTENT_LENGTH": "60"},
    "another path": {"PATH_INFO": "/sales/none/buy/"},
    "PUT": {"REQUEST_METHOD": "PUT"},
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_doubtful_request_falls_back_to_the_view(case, li):
    sale, odd = a_sale(), DOUBTFUL[case]
    environ = {name: value for name, value in odd.items() if name.isupper()}
    answer = li.send(sale, {**li.form(sale), **({} if environ else odd)}, **environ)
    assert li.django.asked == 1
    assert 300 <= answer.status < 500
    assert not Order.objects.exists()


def test_token_is_valid_for_one_customer_and_sale(li):
    sale = a_sale()
    for token in (Browser().form(sale)["purchase_token"], li.form(a_sale())["purchase_token"]):
        assert li.send(sale, {**li.form(sale), "purchase_token": token}).status == 403
    assert not Order.objects.exists()


def test_expired_token_requires_a_csrf_token(li, monkeypatch):
    sale = a_sale()
    form = li.form(sale)
    monkeypatch.setattr(tokens.time, "time", lambda: timezone.now().timestamp() + 3600)
    assert li.send(sale, form).status == 403
    assert li.send(sale, {**form, **li.secret}).status == 303, "and the view gets the whole body"


def test_body_shorter_than_its_length_falls_back(li):
    """The view decides about a truncated body."""
    sale = a_sale()
    assert li.send(sale, CONTENT_LENGTH="4000").status == 303
