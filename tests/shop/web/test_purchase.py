"""Purchases over HTTP: what one with a token reads, and the page of a refusal."""

import re
from unittest.mock import patch

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils.translation import override

from locking import LockTimeout, LockUnavailable
from locking.failpoints import armed
from shop.models import Order, Sale
from shop.purchase import admission
from tests.shop.making import a_sale, hidden_fields
from tests.shop.web.wsgi_browser import Browser, alone, keep_caches, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


def test_purchase_reads_no_session_and_no_user(li, monkeypatch):
    """It writes order, quota, stock row and ledger, and reads nothing before."""
    keep_caches(monkeypatch)
    sale = a_sale()
    Browser().json(sale)  # fills the caches of tokens, admission and policy
    with CaptureQueriesContext(connection) as seen:
        assert li.json(sale).status == 201
    sql = [query["sql"] for query in seen if "inventory_product" not in query["sql"]]
    writes = [line.split()[0] for line in sql if not line.startswith(("SAVE", "RELEASE"))]
    assert sorted(set(writes)) in (["INSERT", "UPDATE"], ["START"])


def test_purchase_reads_its_sale_once_if_that_takes_long(li, monkeypatch):
    """Over a slow database, a second reading would take the time that the purchase has left."""
    monkeypatch.setattr(admission, "FRESH", 0)
    monkeypatch.setattr(admission, "MAX_AGE", 0)  # as if the sale had become too old meanwhile
    sale = a_sale()
    form = li.form(sale)
    with patch.object(admission, "sale_for_purchase", wraps=admission.sale_for_purchase) as read:
        assert li.json(sale, form).status == 201
    assert read.call_count == 1


@pytest.mark.parametrize(("attempt", "transactions"), [(1, 2), (2, 1)], ids=["control", "again"])
def test_form_that_is_sent_again_looks_for_an_order_first(attempt, transactions, li):
    """The hint of its token may be outdated, and would cost a grant that is refused."""
    sale, points = a_sale(limit=2), []
    assert li.json(sale, li.form(sale, "l")).status == 201
    with armed("stock.read", lambda: points.append("transaction")):
        assert li.json(sale, {**li.form(sale), "attempt": attempt}).status == 201
    assert len(points) == transactions


@pytest.mark.parametrize(("error", "seconds"), [(LockTimeout, "1"), (LockUnavailable, "2")])
def test_503_page_keeps_key_and_quantity_and_has_a_valid_token(error, seconds, li):
    sale, key = a_sale(), '"><script>@&%40 键'
    with patch("locking.policy.lock.PolicyLock.__enter__", side_effect=error):
        busy = li.send(sale, li.form(sale, key, quantity=3))
    assert (busy.status, busy.headers["Retry-After"]) == (503, seconds)
    assert "Try again" in busy.text
    assert "<option selected>3</option>" in busy.text
    assert "<script>@" not in busy.text
    kept = {**hidden_fields(busy.text), "quantity": 3}
    assert kept["idempotency_key"] == key
    by_token = {name: value for name, value in kept.items() if name != "csrfmiddlewaretoken"}
    assert li.json(sale, by_token).status == 201, "the token on the page is valid"
    again = li.send_without_token(sale, kept)  # the CSRF token on the page is the customer's own
    assert again.status == 303


def test_unavailable_database_at_admission_is_503(li):
    with patch("shop.purchase.admission.sale_for_purchase", side_effect=OperationalError("gone")):
        assert li.send(a_sale()).status == li.json(a_sale()).status == 503
    assert not Order.objects.exists()


def test_refusal_shows_the_orders_of_the_customer(li):
    sale = a_sale(limit=1)
    li.send(sale)
    page = li.send(sale, li.form(sale, "l"))
    assert page.status == 409
    assert "Purchase limit reached" in page.text
    assert "You can buy at most 1 in this sale." in page.text
    assert Order.objects.get().get_absolute_url() in page.text


@pytest.mark.parametrize("fulfilment", Sale.Fulfilment.values)
def test_form_of_an_order_above_a_limit_lowered_since_gets_it_again(fulfilment, li):
    sale = a_sale(limit=3, fulfilment=fulfilment)
    form = li.form(sale, quantity=3)
    first = li.json(sale, form)
    Sale.objects.update(limit_per_customer=2)
    admission.clear()
    again = li.json(sale, form)
    assert (again.status, again.body) == (first.status, first.body)
    for other, attempt in ((Browser(), ""), (Browser(), "1"), (li, "2")):
        new = {**other.form(sale, "new", quantity=3), "attempt": attempt}
        refused = other.json(sale, new)
        assert (refused.status, refused.body["error"]) == (409, "limit")
        assert refused.body["fewer_left"], "the page's button stays enabled"


@pytest.mark.parametrize("fulfilment", ["direct", "queued"])
def test_customer_who_wants_too_many_may_choose_fewer(fulfilment, li):
    """Without script, too; and once none is left, the sale is sold out."""
    sale = a_sale(stock=1, limit=2, fulfilment=fulfilment)
    few = li.json(sale, {**li.form(sale, quantity=2), "attempt": "1"}).body
    assert (few["error"], few["title"]) == ("sold_out", "Fewer left than you want")
    assert few["fewer_left"] is True
    page = li.send(sale, li.form(sale, quantity=2)).text
    assert 'role="alert"><strong>Fewer left than you want' in page
    assert re.search('<button class="wide">Buy now</button>', page)
    assert Browser().send(sale).status == 303
    admission.clear()
    for quantity in (1, 2):
        none = li.json(sale, li.form(sale, "none", quantity)).body
        assert (none["title"], "fewer_left" in none) == ("Sold out", False)


def test_body_shorter_than_its_length_is_read(li):
    assert li.send(a_sale(), CONTENT_LENGTH="4000").status == 303


def test_malformed_form_is_explained_in_one_language(li):
    """Also with a token, for which LocaleMiddleware does not run."""
    sale = a_sale(limit=5)
    for asked, is_chinese in (("en", False), ("zh-CN", True)):
        with override("en" if is_chinese else "zh-hans"):  # of the thread's last request
            form = {**li.form(sale), "quantity": 0, "csrfmiddlewaretoken": ""}
            answer = li.json(sale, form, HTTP_ACCEPT_LANGUAGE=asked)
        assert answer.status == 400
        for text in (answer.body["title"], answer.body["detail"]):
            assert bool(re.search("[\u4e00-\u9fff]", text)) == is_chinese
