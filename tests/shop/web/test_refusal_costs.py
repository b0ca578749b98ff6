"""Queries and messages to Redis that a refused purchase costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis.connection import Connection as RedisConnection

from locking import policy
from locking.backends.redis.connection import Connection as LockConnection
from shop.platform import rate_limits
from shop.purchase import admission, tokens
from tests.shop.making import a_sale, put_in_force
from tests.shop.web.bad_input import JSON, LIMIT
from tests.shop.web.test_bad_purchases import OVERLOADS, REFUSALS, overload, sell, send
from tests.shop.web.wsgi_browser import Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]

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


@pytest.mark.parametrize("entry", ["token", "session"])
@pytest.mark.parametrize("case", COSTS)
def test_refusal_costs(case, entry, li, settings, monkeypatch):
    """As docs/explanation/purchase.md says; the session entry also reads session and user."""
    settings.LOCK_TIMEOUT, settings.HARD_DEADLINE = 10.0, 13.0
    put_in_force("redis")
    sale, quantity = a_sale(limit=LIMIT), 1 if case in OVERLOADS else 2
    sell(li, sale, 1)
    rate_limits.count("1/second", "anyone")  # loads the limiter's script
    with ExitStack() as stack:
        if case in OVERLOADS:
            stack.enter_context(overload(case, li, sale, settings))
        else:
            REFUSALS[case][2](li, sale)
        for module in (admission, policy, tokens):
            for name in ("FRESH", "MAX_AGE"):
                monkeypatch.setattr(module, name, 60, raising=False)
        other = Browser()
        send(other, sale, entry, JSON, other.form(sale, quantity=quantity))  # fills the caches
        form = li.form(sale, quantity=quantity, is_first=False)
        if not REPEATED & {case}:
            form["attempt"] = 1
        with CaptureQueriesContext(connection) as queries, counted_messages() as messages:
            assert send(li, sale, entry, JSON, form).status in (409, 422, 429)
    more = 2 if entry == "session" else 0
    assert (len(queries) - more, len(messages)) == COSTS[case]
