"""Purchases with a token get the responses of the view, without session and user."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from unittest.mock import patch

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.translation import override

from locking import LockTimeout, LockUnavailable, locks
from locking.policy import active
from shop.administration.audit import audit_sale
from shop.administration.sale_management import restock_sale
from shop.models import Order, Sale
from shop.orders.service import cancel_order
from shop.purchase import admission
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import lock_name
from tests.shop.making import a_customer, a_sale, fresh
from tests.shop.web.wsgi_browser import SIGNALS, Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]

# --- bought -----------------------------------------------------------------------------------


def test_purchase_gets_the_response_of_the_view(li):
    sale = a_sale(limit=5)
    ours = li.json(sale)
    assert li.django.asked == 0
    order = Order.objects.get()
    assert (order.customer, order.sale, order.quantity) == (li.user, sale, 1)
    theirs = li.send_without_token(sale, li.form(sale), accept="application/json")
    assert li.django.asked == 1
    assert ours.headers["Location"] == order.get_absolute_url()
    assert (ours.status, ours.text) == (theirs.status, theirs.text)
    # Only Django's never_cache sets Expires, and only a session varies by its cookie.
    for varying in ("X-Request-ID", "Expires", "Vary"):
        ours.headers.pop(varying, None)
        del theirs.headers[varying]
    assert ours.headers == theirs.headers
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("end", ["sold out", "ended", "paid back"])
def test_replay_succeeds_when_sale_cannot_be_bought(end, li, monkeypatch):
    sale = a_sale(stock=1)
    Browser().send(sale, b"")  # fills the cache of admission
    first = li.json(sale)
    if end == "ended":
        Sale.objects.update(closes_at=timezone.now())
    elif end == "paid back":
        cancel_order(order=Order.objects.get())
        Browser().send(sale)
    monkeypatch.setattr(admission, "MAX_AGE", 0)
    assert Browser().json(sale).body["error"] in ("sold_out", "not_open")
    assert li.json(sale).body == first.body


def test_unwritten_reservation_is_replayed_after_the_end(li):
    sale = a_sale(fulfilment=Sale.Fulfilment.QUEUED)
    first = li.json(sale)
    assert first.status == 202
    Sale.objects.update(closes_at=timezone.now())
    admission.clear()
    assert Browser().json(sale).body["error"] == "not_open"
    assert li.json(sale).body == first.body
    assert li.django.asked == 0


def test_purchase_reads_no_session_and_no_user(li, django_assert_num_queries):
    """It writes order, quota, stock row and ledger, and reads nothing before."""
    sale = a_sale()
    Browser().json(sale)  # fills the caches of tokens, admission and policy
    with CaptureQueriesContext(connection) as seen:
        assert li.json(sale).status == 201
    sql = [query["sql"] for query in seen if "inventory_product" not in query["sql"]]
    writes = [line.split()[0] for line in sql if not line.startswith(("SAVE", "RELEASE"))]
    assert sorted(set(writes)) in (["INSERT", "UPDATE"], ["START"])
    assert "session" not in " ".join(sql)


# --- refused at admission ------------------------------------------------------------------------

SHAPES = {
    "sold_out": {"stock": 0},
    "not_open": {"opens_in": 60},
}


@pytest.mark.parametrize("code", SHAPES)
def test_refusals_from_memory_use_no_store(code, monkeypatch):
    sale = a_sale(**SHAPES[code])
    buyers = [Browser() for _ in range(3)]
    forms = [{**buyer.form(sale), "attempt": 1} for buyer in buyers]
    assert buyers[0].json(sale, forms[0]).body["error"] == code
    for module in (admission, active):
        monkeypatch.setattr(module, "FRESH", 60)
        monkeypatch.setattr(module, "MAX_AGE", 60)
    no_redis = patch("redis.connection.Connection.send_packed_command", side_effect=AssertionError)
    with CaptureQueriesContext(connection) as queries, no_redis:
        for buyer, form in zip(buyers[1:], forms[1:], strict=True):
            assert buyer.json(sale, form).status == 409
            assert buyer.django.asked == 0
    assert not queries.captured_queries


def fields(page: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="(\w+)"[^>]*? value="([^"]*)"', page)
    return {name: unescape(value) for name, value in found}


def test_503_page_keeps_key_and_quantity_and_has_a_valid_token(li):
    sale = a_sale()
    key = '"><script>@&%40 键'
    form = li.form(sale, key, quantity=3)
    with patch("locking.policy.lock.PolicyLock.__enter__", side_effect=LockTimeout):
        busy = li.send(sale, form)
    assert (busy.status, busy.headers["Retry-After"]) == (503, "1")
    assert "Try again" in busy.text
    assert "<option selected>3</option>" in busy.text
    assert "<script>@" not in busy.text
    kept = {**fields(busy.text), "quantity": 3}
    assert kept["idempotency_key"] == key
    li.django.asked = 0
    assert li.json(sale, kept).status == 201
    assert li.django.asked == 0, "the token on the page is valid"
    again = li.send_without_token(sale, kept)  # the CSRF token on the page is the customer's own
    assert again.status == 303


def test_held_lock_is_503_and_purchase_can_be_repeated(li, settings):
    settings.LOCK_TIMEOUT = 0.01
    sale = a_sale()
    form = li.form(sale, "k")
    held = locks["process"].lock(lock_name(sale.pk))
    with ThreadPoolExecutor(1) as first:
        first.submit(held.acquire).result()
        response = li.send(sale, form)
        first.submit(held.release).result()
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert fields(response.text)["idempotency_key"] == "k"
    assert li.send(sale, form).status == 303


@pytest.mark.parametrize("way", ["token", "view"])
def test_no_store_is_used_past_the_hard_deadline(way, li, settings):
    """The error page does not read the sale either."""
    sale = a_sale()
    form = li.form(sale)
    li.json(sale, form)  # fills the cache of admission
    settings.HARD_DEADLINE = -1.0
    with (
        patch("locking.policy.current", side_effect=AssertionError),
        patch("shop.web.purchase.read_sale", side_effect=AssertionError),
    ):
        response = li.json(sale, form) if way == "token" else li.send_without_token(sale, form)
    assert (response.status, response.headers["Retry-After"]) == (503, "2")
    assert "be charged twice" in response.text, "the first request has bought"
    assert li.django.asked == (way == "view")


@pytest.mark.parametrize("by", ["cancel", "restock"])
def test_replay_succeeds_while_cached_sale_is_sold_out(by, li, monkeypatch):
    """The cached sale is older than the customer's order."""
    for name in ("FRESH", "MAX_AGE"):
        monkeypatch.setattr(admission, name, 60)
    sale = a_sale(stock=1, limit=1)
    form = li.form(sale, "k")
    first = place_order(
        PurchaseRequest(customer_id=a_customer().pk, sale=fresh(sale), quantity=1, key="k")
    ).order
    assert li.json(sale, form).body["error"] == "sold_out"
    if by == "cancel":
        cancel_order(order=first)
    else:
        restock_sale(sale=fresh(sale), quantity=1)
    mine = place_order(
        PurchaseRequest(customer_id=li.user.pk, sale=fresh(sale), quantity=1, key="k")
    ).order
    again = li.json(sale, form)
    assert (again.status, again.headers["Location"]) == (201, mine.get_absolute_url())
    assert li.django.asked == 0


def test_refusal_shows_the_orders_of_the_customer(li):
    sale = a_sale(limit=1)
    li.send(sale)
    page = li.send(sale, li.form(sale, "l"))
    assert page.status == 409
    assert "Purchase limit reached" in page.text
    assert "You can buy at most 1 in this sale." in page.text
    assert Order.objects.get().get_absolute_url() in page.text


def test_body_shorter_than_its_length_is_read(li):
    sale = a_sale()
    assert li.send(sale, CONTENT_LENGTH="4000").status == 303


@pytest.mark.parametrize("quantity", [6, "x", [1, 1]])
def test_malformed_form_is_explained_in_one_language(quantity, li):
    """Also with a token, for which LocaleMiddleware does not run."""
    sale = a_sale(limit=5)
    for asked, is_chinese in (("en", False), ("zh-CN", True)):
        with override("en" if is_chinese else "zh-hans"):  # of the thread's last request
            form = {**li.form(sale), "quantity": quantity}
            answer = li.json(sale, form, HTTP_ACCEPT_LANGUAGE=asked)
        assert (answer.status, li.django.asked) == (400, 0)
        for text in (answer.body["title"], answer.body["detail"]):
            assert bool(re.search("[\u4e00-\u9fff]", text)) == is_chinese


def test_purchases_are_limited_per_customer(li, settings):
    settings.BUY_LIMIT = "3/minute"
    sale = a_sale(stock=10, limit=10)
    statuses = [li.json(sale, li.form(sale, f"k{n}")).status for n in range(5)]
    assert statuses == [201, 201, 201, 429, 429]
    refused = li.json(sale)
    assert refused.body["error"] == "too_many"
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert li.django.asked == 0
    assert li.send_without_token(sale, li.form(sale)).status == 429, (
        "the view counts together with the middleware"
    )
    assert Browser().send(sale).status == 303, "the limit is per customer"


# --- stores and bugs --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [OperationalError(2006, "gone"), LockUnavailable()])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_unavailable_store_is_503(fault, accept, li):
    sale = a_sale()
    with patch("shop.web.purchase.place_order", side_effect=fault):
        answer = li.send(sale, accept=accept)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert li.send(sale).status == 303


def test_unavailable_database_at_admission_falls_back(li):
    sale = a_sale()
    with patch(
        "shop.purchase.admission.sale_for_purchase", side_effect=OperationalError(2006, "gone")
    ):
        assert li.send(sale).status in (403, 503)
    assert not Order.objects.exists()


def test_request_signals_are_sent(li):
    seen = []

    def record(signal, **_: object) -> None:
        seen.append(signal)

    for signal in SIGNALS:
        signal.connect(record)
    try:
        li.send(a_sale())
    finally:
        for signal in SIGNALS:
            signal.disconnect(record)
    assert seen == list(SIGNALS)
