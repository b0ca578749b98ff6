"""A database that does not reply costs one limit per process; then requests fail at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import override_settings

from devservers.faults.waiting import until
from inventory.exceptions import OutcomeUnknown
from inventory.messages import in_one_message
from inventory.models import Stock
from inventory.stock import restock
from locking import locks
from locking.backends.database.breaker import breaker_of
from shop.models import Sale
from tests.devservers.faults.interception import InterceptingProxy
from tests.shop.making import a_sale, buy, put_in_force, signed_in

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.only("mysql", "postgresql"),
]
IS_MYSQL = connection.vendor == "mysql"
REPLY = 1.2
"""Seconds in which the database must reply to a web process, also to a statement of a lock."""
SLACK = 1.5
"""Seconds that a loaded machine may take longer; less than a second limit and a timeout."""
LONG = 60.0
"""Seconds in which a wait of one or two seconds has ended; it would have no end otherwise."""
AT_ONCE = 0.8
"""Seconds of the quickest of some calls that do not wait; each wait takes more than 0.9."""
SESSION_LOCK = "mysql_session" if IS_MYSQL else "postgresql_session"

Connect = Callable[[], BaseDatabaseWrapper]


@pytest.fixture(autouse=True)
def limits(settings) -> None:
    settings.LOCK_TIMEOUT, settings.HARD_DEADLINE = 1.0, 1.3


@pytest.fixture
def proxy() -> Iterator[InterceptingProxy]:
    with InterceptingProxy(int(connection.settings_dict["PORT"])) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: InterceptingProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An alias of the database through the proxy, with the limits of a web process."""
    limits = {"read_timeout": 1} if IS_MYSQL else {"tcp_user_timeout": 1000}
    options = {**connection.settings_dict["OPTIONS"], **limits}
    entry = {**connection.settings_dict, "PORT": str(proxy.port), "OPTIONS": options}
    monkeypatch.setitem(connections.settings, "far", entry)
    yield "far"
    proxy.cut()
    proxy.resume()


@pytest.fixture
def connect(far: str) -> Iterator[Connect]:
    made = []

    def make() -> BaseDatabaseWrapper:
        made.append(type(connections["default"])(connections.settings[far], "default"))
        made[-1].inc_thread_sharing()
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(on: BaseDatabaseWrapper, sql: str = "SELECT 1") -> Any:
    with on.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def seconds_until_error(call: Callable[[], object], error: Any = OperationalError) -> float:
    began = time.monotonic()
    with pytest.raises(error):
        call()
    return time.monotonic() - began


def fails_at_once(call: Callable[[], object]) -> bool:
    return min(seconds_until_error(call) for _ in range(3)) < AT_ONCE


@contextmanager
def by_default(on: BaseDatabaseWrapper) -> Iterator[None]:
    """Let this thread use the connection by default."""
    before, connections["default"] = connections["default"], on
    try:
        yield
    finally:
        connections["default"] = before


def write(on: BaseDatabaseWrapper, sale: Sale) -> None:
    """Send a transaction in one message, as a purchase does."""
    with by_default(on):
        in_one_message(restock(stock_id=sale.stock_id, quantity=1))


def test_first_late_reply_stops_all_connections(proxy, connect) -> None:
    first, second = connect(), connect()
    assert ask(first) == ask(second) == 1
    proxy.hold()
    assert 0.9 < seconds_until_error(partial(ask, first)) < LONG
    assert fails_at_once(partial(ask, second)), "it waited for the server again"
    assert fails_at_once(partial(ask, connect())), "it connected to it again"
    proxy.cut()
    proxy.resume()
    until(lambda: not breaker_of(first).is_open, "the probe")
    for each in (first, second):
        each.close_if_unusable_or_obsolete()
        assert ask(each) == 1


def test_process_that_starts_during_the_fault_opens_the_breaker(proxy, connect) -> None:
    """Its first wait is for the connection; psycopg grants it two seconds at least."""
    proxy.hold()
    assert seconds_until_error(partial(ask, connect())) < LONG
    assert fails_at_once(partial(ask, connect()))


def test_all_waits_end(proxy, connect) -> None:
    """That for a COMMIT too, and for the message of a purchase, whose outcome is unknown."""
    sale, asks, commits, writes = a_sale(), connect(), connect(), connect()
    for each in (asks, writes):
        ask(each)
    commits.set_autocommit(False)
    ask(commits)  # psycopg commits nothing without a transaction
    proxy.hold()
    with ThreadPoolExecutor(3) as pool:
        waits = [
            pool.submit(seconds_until_error, *call)
            for call in (
                (partial(ask, asks),),
                (commits.commit,),
                (partial(write, writes, sale), OutcomeUnknown),
            )
        ]
        assert all(0.9 < wait.result() < LONG for wait in waits)
    assert breaker_of(asks).is_open


def test_failed_query_raises_an_error_of_django(proxy, connect) -> None:
    """Django closes its cursor outside its translation of errors; the driver's would be a 500."""
    first, second = connect(), connect()
    assert ask(first) == ask(second) == 1
    proxy.hold()
    for each in (first, second, connect()):  # waits in vain, is refused, cannot connect
        with by_default(each), pytest.raises(OperationalError):
            Sale.objects.get()


@pytest.mark.parametrize("backend", ["redis", "database", SESSION_LOCK])
def test_purchase_costs_the_hard_deadline_and_one_reply(
    proxy, connect, monkeypatch, backend
) -> None:
    sale, client = a_sale(), signed_in(raise_request_exception=False)
    if backend != "redis":
        monkeypatch.setitem(settings.LOCKS[backend], "LOCATION", "far")
        locks.close()
    put_in_force(backend)
    with by_default(connect()):
        with override_settings(LOCK_TIMEOUT=20.0, HARD_DEADLINE=20.0):  # it imports the views
            assert buy(client, sale, key="before").status_code == 303
        proxy.hold()
        took = []
        for _ in range(4):
            began = time.monotonic()
            assert buy(client, sale).status_code == 503
            took.append(time.monotonic() - began)
        assert took[0] < settings.HARD_DEADLINE + REPLY + SLACK
        assert min(took[1:]) < AT_ONCE
    locks.close()


def test_wait_for_a_row_has_a_known_end(connect) -> None:
    """The server ends it before the client gives up, and the breaker stays closed."""
    sale, holder, waiter = a_sale(), connect(), connect()
    limit = "max_statement_time = 0.3" if IS_MYSQL else "lock_timeout = 300"
    waiter.cursor().execute(f"SET {limit}")
    with by_default(holder), transaction.atomic():
        list(Stock.objects.select_for_update())
        with pytest.raises(OperationalError) as caught:
            write(waiter, sale)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert not breaker_of(waiter).is_open
    assert ask(waiter) == 1


def test_slow_network_does_not_open_the_breaker(proxy, connect) -> None:
    on = connect()
    ask(on)
    proxy.delay = 0.2
    assert ask(on) == ask(on) == 1


def test_session_has_bounded_waits(connect) -> None:
    level = "tx_isolation" if IS_MYSQL and connection.mysql_is_mariadb else "transaction_isolation"
    wanted = {
        "@@innodb_lock_wait_timeout": 3,
        "@@sql_mode": "STRICT_TRANS_TABLES",
        "@@character_set_client": "utf8mb4",
        f"@@{level}": "READ-COMMITTED",
    }
    if not IS_MYSQL:
        wanted = {
            "statement_timeout": "9s",
            "lock_timeout": "3s",
            "transaction_isolation": "read committed",
            "TimeZone": "UTC",
        }
    command = "SELECT" if IS_MYSQL else "SHOW"
    assert {name: ask(connect(), f"{command} {name}") for name in wanted} == wanted
