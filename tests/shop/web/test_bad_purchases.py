"""FAULTS.md, "Bad input", through both entry points of a purchase: equal refusals, no change.

A session identifies its customer by the session cookie and requires a CSRF token. A purchase token
replaces both. The form of the sale page carries the two tokens.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import redis
from django.conf import settings as django_settings
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from locking import LockUnavailable, locks
from shop.models import Order, Sale
from shop.platform import rate_limits
from shop.purchase import admission
from shop.sales import waiting_slots
from shop.sales.stock_lock import lock_name
from shop.web.purchase import MAX_BODY
from tests.locking.calls import held_by_another
from tests.shop.making import a_sale, put_in_force
from tests.shop.web.bad_forms import CASES
from tests.shop.web.test_bad_input import JSON, everything, no_traceback
from tests.shop.web.wsgi_browser import Browser, alone, counted_messages, keep_caches, li

__all__ = ["alone", "li", "no_traceback"]
pytestmark = pytest.mark.django_db

PAGE = "text/html"
LIMIT = 5
OTHER_KEYS = (b"shop:", b"rate-limit:", b"lock:{build:", b"lock:clock", b"rates:")
"""Prefixes in Redis of caches, counted requests, the locks that guard the building of pages, the
clock of all locks, and published rates."""
LOCKS = b"lock:"
"""Prefix of the tokens of locks: a purchase that is refused late, or replayed, acquires one."""
ENTRIES = {"text/html": ("session", "page"), JSON: ("session", "page", "token")}
"""By format: a purchase token alone identifies only clients that ask for JSON."""
CODES = {
    400: "bad_input",
    401: "sign_in",
    403: "forgery",
    404: "not_found",
    405: "wrong_method",
    415: "unsupported_type",
}
UNVERIFIED = {"body", "idempotency_key", "HTTP_IDEMPOTENCY_KEY", "CONTENT_TYPE", "CONTENT_LENGTH"}
UNVERIFIED |= {"PATH_INFO"}
"""Changes after which a purchase token may be unreadable or invalid; the answer may then be 403."""

BOTH = pytest.mark.parametrize("sale", Sale.Fulfilment.values, indirect=True)


def state(*but: bytes) -> tuple[object, ...]:
    """Return all rows, reservations and locks that a purchase changes; `but` are prefixes."""
    server = redis.Redis.from_url(django_settings.REDIS_URL)
    names = [name for name in server.scan_iter() if not name.startswith((*OTHER_KEYS, *but))]
    holders = [(held.name, held.owner) for held in locks["redis"].inspect()]
    return everything(), {name: server.dump(name) for name in names}, holders


@pytest.fixture
def sale(request, li: Browser, settings) -> Sale:
    """Return a sale from which another customer has bought."""
    settings.BUY_LIMIT = "1000000/hour"  # a window that outlasts the test
    put_in_force("redis")
    sale = a_sale(limit=LIMIT, fulfilment=getattr(request, "param", "direct"))
    assert Browser().send(sale).status == 303
    return sale


def send(li: Browser, sale: Sale, entry: str, accept: str, changes: dict[str, Any]) -> Any:
    """Send a purchase over one entry."""
    csrf = {} if entry == "token" else {"HTTP_X_CSRFTOKEN": li.secret["csrfmiddlewaretoken"]}
    environ = csrf | {name: value for name, value in changes.items() if name.isupper()}
    fields = {name: value for name, value in changes.items() if not name.isupper()}
    key = fields.get("idempotency_key", "k")
    form = {**li.form(sale, key if isinstance(key, str) else "k"), "csrfmiddlewaretoken": None}
    form |= fields
    if entry == "session":
        del form["purchase_token"]
    body = form.pop("body", {name: value for name, value in form.items() if value is not None})
    return li.send(sale, body, accept=accept, **environ)


def compared(response: Any) -> tuple[object, ...]:
    """Return what must be equal over all entries: status, headers, and the text of a refusal."""
    names = set(response.headers) - {"Set-Cookie", "Expires"}  # only never_cache sets Expires
    if response.status < 400:  # a response without text has no language
        names -= {"Content-Language", "Vary"}
    wait = response.headers.get("Retry-After", "")
    headers = [response.headers.get(name) for name in ("Allow", "Content-Type", "Location")]
    # The wait of "1/hour" shrinks from one request to the next.
    headers += ["minutes" if len(wait) > 2 else wait, *sorted(names)]
    if "json" in response.headers.get("Content-Type", ""):
        return response.status, headers, json.loads(response.text)
    found = re.findall(r'<title>(.*?)</title>|role="alert">(.*?)</div>', response.text, re.S)
    return response.status, headers, found


@pytest.mark.parametrize("accept", [PAGE, JSON])
@pytest.mark.parametrize("part", range(4))
def test_bad_purchase_is_refused(part, accept, li, sale):
    """A quarter of the cases with one sale, which none of them changes."""
    before = state()
    for case, (status, changes) in list(CASES.items())[part::4]:
        expected = 401 if (status, accept) == (302, JSON) else status
        session, page, *tokens = (send(li, sale, one, accept, changes) for one in ENTRIES[accept])
        assert session.status == expected, case
        assert session.headers.get("Allow") == ("POST" if status == 405 else None), case
        if accept == JSON:
            assert json.loads(session.text)["error"] == CODES[expected], case
        else:
            assert session.headers["Content-Type"].startswith(PAGE), case
        if expected == 302:
            assert session.headers["Location"] == f"/accounts/sign-in/?next=/sales/{sale.slug}/"
        assert compared(page) == compared(session), case
        for token in tokens:
            if token.status != 403 or not UNVERIFIED & set(changes):
                assert compared(token) == compared(session), case
    assert state() == before


FORGED: dict[str, Callable[[str, Browser, Sale], dict[str, object]]] = {
    "none": lambda *_: {"purchase_token": ""},
    "two": lambda token, *_: {"purchase_token": [token, token]},
    "changed": lambda token, *_: {"purchase_token": token[:-1]},
    "not UTF-8": lambda token, *_: {"purchase_token": token.encode() + b"\xff"},
    "another customer's": lambda _, li, sale: {"purchase_token": token_of(Browser(), sale)},
    "another sale's": lambda _, li, sale: {"purchase_token": token_of(li, a_sale())},
    "in a long form": lambda *_: {"x": "x" * MAX_BODY},
}
"""What differs from a valid form; tests/shop/purchase/test_tokens.py has all changes of a token."""


def token_of(browser: Browser, sale: Sale) -> str:
    return str(browser.form(sale)["purchase_token"])


@pytest.mark.parametrize("forged", FORGED)
def test_invalid_token_does_not_identify_the_customer(forged, li, sale):
    changes = FORGED[forged](token_of(li, sale), li, sale)
    before = state()
    for accept in (PAGE, JSON):
        assert send(li, sale, "token", accept, changes).status == 403
        malformed = {**changes, "quantity": "0"}
        refused = [send(li, sale, entry, accept, malformed) for entry in ("session", "page")]
        assert refused[0].status == 400
        assert compared(refused[0]) == compared(refused[1])
    assert state() == before
    assert send(li, sale, "page", PAGE, changes).status == 303, "the session is valid"


def sell(li: Browser, sale: Sale, *quantities: int) -> None:
    for quantity in quantities:
        buy(Browser(), sale, "k", quantity)
    admission.clear()


def end(li: Browser, sale: Sale) -> None:
    Sale.objects.update(closes_at=timezone.now())
    admission.clear()


def unopen(li: Browser, sale: Sale) -> None:
    Sale.objects.update(opens_at=timezone.now() + timedelta(minutes=1))
    admission.clear()


def buy(li: Browser, sale: Sale, key: str, quantity: int = 1) -> None:
    assert li.send(sale, li.form(sale, key, quantity)).status == 303


REFUSALS: dict[str, tuple[int, str, Callable[[Browser, Sale], None]]] = {
    "not open yet": (409, "not_open", unopen),
    "ended": (409, "not_open", end),
    "ended after an order": (409, "not_open", lambda *of: (buy(*of, "l"), end(*of))),
    "sold out": (409, "sold_out", lambda *of: sell(*of, 5, 4)),
    "sold out after an order": (409, "sold_out", lambda *of: (buy(*of, "l"), sell(*of, 5, 3))),
    "too few": (409, "sold_out", lambda *of: sell(*of, 5, 3)),
    "limit": (409, "limit", lambda *of: buy(*of, "l", LIMIT)),
    "limit exceeded": (409, "limit", lambda *of: buy(*of, "l", LIMIT - 1)),
    "other contents": (422, "key_reused", lambda *of: buy(*of, "k")),
}


@pytest.mark.stores
@BOTH
@pytest.mark.parametrize("case", REFUSALS)
def test_rule_of_the_sale_refuses(case, li, sale):
    """Neither the token's hint nor what the client says of its attempt changes the answer."""
    status, code, prepare = REFUSALS[case]
    # Only the page's script, which asks for JSON, tells it. With a reused key, it is not the first.
    attempts = [None] if case == "other contents" else ["1", "2", None]
    prepare(li, sale)
    before = state(LOCKS)
    sent = [(PAGE, None), *((JSON, attempt) for attempt in attempts)]
    for (accept, attempt), is_first in product(sent, (True, False)):
        changes = {**li.form(sale, quantity=2, is_first=is_first), "attempt": attempt}
        session, *others = (send(li, sale, entry, accept, changes) for entry in ENTRIES[accept])
        assert session.status == status
        assert accept == PAGE or json.loads(session.text)["error"] == code
        assert [compared(each) for each in others] == [compared(session)] * len(others)
    assert state(LOCKS) == before


@pytest.mark.stores
@BOTH
@pytest.mark.parametrize("case", ["not open yet", "ended", "too few"])
def test_replay_succeeds_when_the_sale_cannot_be_bought(case, li, sale):
    first = {accept: send(li, sale, "session", accept, {}) for accept in (PAGE, JSON)}
    _, code, prepare = REFUSALS[case]
    prepare(li, sale)
    assert Browser().json(sale).body["error"] == code
    for accept, told in first.items():
        again = [send(li, sale, entry, accept, {}) for entry in ENTRIES[accept]]
        assert [compared(each) for each in again] == [compared(told)] * len(again)


OVERLOADS = {
    "lock held": (503, "busy"),
    "lock store down": (503, "store_down"),
    "database down": (503, "store_down"),
    "past the deadline": (503, "store_down"),
    "queue full": (429, "crowded"),
    "rate limit": (429, "too_many"),
}


@contextmanager
def overload(case: str, li: Browser, sale: Sale, settings: Any) -> Iterator[None]:
    with ExitStack() as stack:
        if case == "lock held":
            settings.LOCK_TIMEOUT = 0.01
            stack.enter_context(held_by_another(locks["redis"], lock_name(sale.pk)))
        elif case == "lock store down":
            lock = "locking.policy.lock.PolicyLock.__enter__"
            stack.enter_context(patch(lock, side_effect=LockUnavailable))
        elif case == "database down":
            service = "reserve" if sale.is_queued else "place_order"
            gone = OperationalError(2006, "Server has gone away")
            stack.enter_context(patch(f"shop.web.purchase.{service}", side_effect=gone))
        elif case == "past the deadline":
            settings.HARD_DEADLINE = -1.0
        elif case == "queue full":
            settings.MAX_WAITING = 1
            waiting_slots.clear()
            stack.enter_context(waiting_slots.waiting_slot(sale_id=sale.pk))
        else:
            settings.BUY_LIMIT = "1/hour"
            answers = [li.send(sale, li.form(sale, "l")).status for _ in range(3)]
            assert answers[-1] == 429
        yield


@BOTH
@pytest.mark.parametrize("case", OVERLOADS)
def test_overload_refuses(case, li, sale, settings):
    """Control of each case: the same form buys afterwards."""
    with overload(case, li, sale, settings):
        if sale.is_queued and case.startswith("lock"):
            assert send(li, sale, "token", JSON, {}).status == 202, "a reservation needs no lock"
            return
        before = state(LOCKS)
        for accept in (PAGE, JSON):
            session, *others = (send(li, sale, entry, accept, {}) for entry in ENTRIES[accept])
            assert session.status == OVERLOADS[case][0]
            assert accept == PAGE or json.loads(session.text)["error"] == OVERLOADS[case][1]
            assert int(session.headers["Retry-After"]) > 0
            assert [compared(each) for each in others] == [compared(session)] * len(others)
        assert state(LOCKS) == before
        assert case != "rate limit" or Browser().send(sale).status == 303, "per customer"
    settings.LOCK_TIMEOUT, settings.HARD_DEADLINE, settings.BUY_LIMIT = 10.0, 13.0, "1000/hour"
    assert send(li, sale, "token", JSON, {}).status in (201, 202)


@pytest.mark.stores
@BOTH
@pytest.mark.parametrize(
    ("entry", "accept"), [(entry, accept) for accept in ENTRIES for entry in ENTRIES[accept]]
)
def test_valid_purchase_is_replayed_over_every_entry(entry, accept, li, sale):
    """Control of the tests of refusals: the state shows the purchase, and one more by another."""
    before = state(LOCKS)
    extra = {"price": "0.01", "unit_price": "0.01", "customer": "1", "status": "paid"}
    first = send(li, sale, entry, accept, extra)
    assert first.status in (201, 202, 303)
    after = state(LOCKS)
    assert after != before
    for other in ENTRIES[accept]:
        assert compared(send(li, sale, other, accept, {})) == compared(first)
        in_header = {"idempotency_key": None, "HTTP_IDEMPOTENCY_KEY": "k"}
        assert compared(send(li, sale, other, accept, in_header)) == compared(first)
    assert state(LOCKS) == after
    if not sale.is_queued:
        order = Order.objects.latest("pk")
        assert (order.unit_price, order.customer, order.status) == (sale.price, li.user, "pending")
    assert send(Browser(), sale, entry, accept, {}).headers["Location"] != first.headers["Location"]


COSTS = {
    "not open yet": (0, 0),
    "ended": (0, 0),
    "sold out": (0, 0),
    "queue full": (0, 0),
    "too few": (0, 0),
    "limit": (1, 1),
    "other contents": (1, 1),
    "ended after an order": (1, 1),
    "sold out after an order": (1, 1),
    "rate limit": (0, 3),
}
"""Queries, and messages to Redis: the requests of a customer are counted from the second one on."""
REPEATED = {"other contents", "ended after an order", "sold out after an order"}
"""Forms that the client does not send for the first time."""


@pytest.mark.stores
@pytest.mark.parametrize(
    ("case", "sale"),
    [*((case, "direct") for case in COSTS), ("ended", "queued"), ("sold out", "queued")],
    indirect=["sale"],
)
def test_refusal_costs(case, li, sale, settings, monkeypatch):
    """As docs/explanation/purchase.md says, with a purchase token."""
    rate_limits.count("1/second", "anyone")  # loads the limiter's script
    with ExitStack() as stack:
        if case in OVERLOADS:
            stack.enter_context(overload(case, li, sale, settings))
        else:
            REFUSALS[case][2](li, sale)
        keep_caches(monkeypatch)
        other, quantity = Browser(), 1 if case in OVERLOADS else 2
        send(other, sale, "token", JSON, other.form(sale, quantity=quantity))  # fills the caches
        form = li.form(sale, quantity=quantity, is_first=False)
        if not REPEATED & {case}:
            form["attempt"] = 1
        with CaptureQueriesContext(connection) as queries, counted_messages() as messages:
            assert send(li, sale, "token", JSON, form).status in (409, 422, 429)
    assert (len(queries), len(messages)) == COSTS[case]
