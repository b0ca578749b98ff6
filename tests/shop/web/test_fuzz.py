"""Fuzzed purchases, direct and queued: never a 500, and orders only where a response names one."""

import json
import os
import string
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from shop.reservations import store
from tests.shop.making import a_sale, fresh
from tests.shop.web.bad_input import JSON, KEYS, LIMIT, QUANTITIES
from tests.shop.web.wsgi_browser import FORM, Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


@pytest.fixture(autouse=True)
def _no_rate_limit(alone: None, settings) -> None:
    settings.BUY_LIMIT = "1000000/second"


@pytest.fixture(params=Sale.Fulfilment.values)
def sale(request) -> Sale:
    return a_sale(stock=10, limit=LIMIT, fulfilment=request.param)


_texts = st.one_of(
    st.sampled_from([*QUANTITIES, "1", "2", "k", "key", *(k for k in KEYS if isinstance(k, str))]),
    st.text(max_size=20),
    st.text(string.printable, max_size=300),
)
_names = st.sampled_from(
    ["quantity", "idempotency_key", "purchase_token", "csrfmiddlewaretoken", "price", "customer"]
)
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)
    ),
    max_leaves=6,
)
_bodies = st.one_of(
    st.binary(max_size=200),
    st.lists(st.tuples(_names, _texts), max_size=6).map(
        lambda pairs: "&".join(f"{n}={quote(t, errors='surrogatepass')}" for n, t in pairs).encode()
    ),
    st.dictionaries(_names, _json, max_size=4).map(lambda one: json.dumps(one).encode()),
    _json.map(lambda one: json.dumps(one).encode()),
)
KINDS = [JSON, FORM, f"{FORM}; charset=\xff", "multipart/form-data; boundary=x", "text/plain"]
_header = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=40)
_environ = st.fixed_dictionaries(
    {},
    optional={
        "REQUEST_METHOD": st.sampled_from(["POST", "GET", "PUT", "DELETE", "TRACE", "BREW", ""]),
        "CONTENT_TYPE": st.sampled_from([*KINDS, ""]) | _header,
        # Web servers refuse other values.
        "CONTENT_LENGTH": st.sampled_from(["", "0", "5", "99999", "1" * 20]),
        "HTTP_COOKIE": _header,
        "HTTP_HOST": st.sampled_from(["localhost", "evil.example", "a b", ""]) | _header,
        "HTTP_ORIGIN": st.sampled_from(["http://localhost", "null", "https://evil.example"]),
        "HTTP_ACCEPT_LANGUAGE": _header,
        "HTTP_X_FORWARDED_FOR": _header,
        "HTTP_IDEMPOTENCY_KEY": _header,
        "QUERY_STRING": st.sampled_from(["quantity=1&idempotency_key=k", "%00", "a" * 3000]),
    },
)
_forms = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("quantity", "x", "purchase_token"), _texts)
)
ALLOWED = {201, 202, 302, 303, 400, 401, 403, 404, 405, 409, 415, 422, 429}


@pytest.mark.long
def test_fuzzed_requests_never_fail_or_oversell(li: Browser, sale: Sale) -> None:
    """Send arbitrary requests; assert that orders exist only where a response reports one."""
    li.json(sale, b"")
    locations: set[str] = set()
    statuses: dict[int, int] = {}

    @seed(int(os.environ.get("SEED", "42")))
    @settings(
        max_examples=4_000,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.one_of(_bodies, _forms),
        _environ,
        st.booleans(),
        st.sampled_from(["text/html", JSON, "*/*"]),
    )
    def one(sent: Any, environ: dict[str, str], has_secret: bool, accept: str) -> None:
        if isinstance(sent, dict):  # a valid form with some fields replaced
            replaced = {name: text.encode(errors="replace") for name, text in sent.items()}
            sent = {**li.form(sale), **replaced}
            sent |= li.secret if has_secret else {}
        elif has_secret:
            environ = {**environ, "HTTP_X_CSRFTOKEN": li.secret["csrfmiddlewaretoken"]}
        answer = li.send(sale, sent, accept=accept, **environ)
        assert answer.status in ALLOWED, (answer.status, sent, environ)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        if answer.status in (201, 202, 303):
            locations.add(answer.headers["Location"])
        if not sale.is_queued:
            assert Order.objects.count() == len(locations), (sent, environ)

    one()
    if sale.is_queued:
        assert store.left(sale=fresh(sale)) + len(locations) <= sale.stock.quantity
    assert audit_sale(sale=fresh(sale)).ok
    assert {303, 400, 403} <= set(statuses), "the requests reached too few outcomes"
