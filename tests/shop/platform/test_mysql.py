"""The engines of the shop: an unresponsive database is detected once per process."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import MySQLdb
import pytest
from django.db import OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from shop.platform.database import stall_detector
from tests.devservers.faults.interception import InterceptingProxy
from tests.locking.backends.database.database_tools import Root, database, session

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.only("mysql", "postgresql"),
]
IS_MYSQL = connection.vendor == "mysql"
SLEEP = "SELECT SLEEP({})" if IS_MYSQL else "SELECT pg_sleep({})"
BOUND = 5.0
"""Upper bound in seconds for a wait on a stalled server: 0.9 on an idle machine, 10 undetected."""


@pytest.fixture
def proxy() -> Iterator[InterceptingProxy]:
    with InterceptingProxy(int(connection.settings_dict["PORT"])) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: InterceptingProxy) -> Iterator[Callable[[], BaseDatabaseWrapper]]:
    """Make connections through the proxy; the drivers alone would wait ten seconds on each."""
    made = []

    def make() -> BaseDatabaseWrapper:
        made.append(connections.create_connection("default"))
        made[-1].inc_thread_sharing()
        made[-1].settings_dict = {**made[-1].settings_dict, "PORT": str(proxy.port)}
        name = "read_timeout" if IS_MYSQL else "response_timeout"
        assert made[-1].settings_dict["OPTIONS"][name] == 10
        return made[-1]

    yield make
    proxy.cut()
    proxy.resume()
    for each in made:
        each.close()


def ask(on: BaseDatabaseWrapper, sql: str = "SELECT 1") -> Any:
    with on.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def seconds_until_error(on: BaseDatabaseWrapper, sql: str = "SELECT 1") -> float:
    """Return the seconds until the statement fails."""
    began = time.monotonic()
    with pytest.raises(OperationalError):
        ask(on, sql)
    return time.monotonic() - began


def responds(on: BaseDatabaseWrapper) -> bool:
    """Return False while the circuit breaker refuses all statements."""
    try:
        return bool(ask(on) == 1)
    except OperationalError:
        return False


def test_one_late_reply_stops_all_connections(proxy, connect) -> None:
    first, second = connect(), connect()
    assert ask(first) == ask(second) == 1
    proxy.hold()
    assert 0.2 < seconds_until_error(first) < BOUND, "no reply was late"
    assert seconds_until_error(second) < 0.5, "it waited for the server again"
    assert seconds_until_error(connect()) < 0.5, "it connected to the server again"
    proxy.cut()
    proxy.resume()
    until(lambda: responds(connect()))
    for each in (first, second):
        each.close_if_unusable_or_obsolete()
        assert ask(each) == 1


def test_cursor_closes_after_its_statement_failed(proxy, connect) -> None:
    """Django closes it outside its translation of errors; an error of MySQLdb would be a 500."""
    on = connect()
    assert ask(on) == 1
    proxy.hold()
    cursor = on.cursor()
    with pytest.raises(OperationalError):
        cursor.execute("SELECT 1")
    cursor.close()


@pytest.mark.only("mysql")
def test_stall_while_the_detector_connects(proxy, connect, monkeypatch) -> None:
    """The server stalls after it has greeted the detector's first connection."""
    stalled, connect_plain = threading.Event(), MySQLdb.connect

    def late(**params: Any) -> Any:
        connection = connect_plain(**params)
        assert stalled.wait(WAIT_TIMEOUT)
        connection.query("DO 1")  # as the set-up of a new connection does
        return connection

    monkeypatch.setattr(MySQLdb, "connect", late)
    first = connect()
    assert ask(first) == 1
    proxy.hold()
    stalled.set()
    assert seconds_until_error(first) < BOUND


def test_all_waits_end_at_once(proxy, connect) -> None:
    """This includes a COMMIT and, on MySQL, a wait between two results of one message."""
    asks, commits, reads = connect(), connect(), connect()
    ask(asks)
    commits.set_autocommit(False)
    ask(commits)  # psycopg commits nothing without a transaction
    cursor = reads.cursor()
    if IS_MYSQL:
        cursor.execute("SELECT 1; SELECT SLEEP(9)")
    else:
        ask(reads)
    proxy.hold()
    took = []

    def wait(for_it: Callable[[], object]) -> None:
        began = time.monotonic()
        with pytest.raises(OperationalError):
            for_it()
        took.append(time.monotonic() - began)

    read = cursor.nextset if IS_MYSQL else partial(cursor.execute, SLEEP.format(9))
    waits = (partial(ask, asks), commits.commit, read)
    threads = [threading.Thread(target=wait, args=(each,)) for each in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(took) == 3
    assert max(took) < BOUND


def test_wait_that_starts_during_an_abort_does_not_stop_the_detector(connect) -> None:
    on = connect()
    ask(on)
    detector, started = on.connection.detector, []

    class Waiter:
        @property
        def descriptor(self) -> int:
            started.append(object())
            detector.start(started[0])
            return -1

    first = Waiter()
    detector.start(first)
    detector.abort_waits()
    assert len(started) == 1
    for waiter in (first, *started):
        detector.stop(waiter)


@pytest.mark.only("mysql")
@pytest.mark.parametrize("make", [database, session])
def test_wait_for_a_lock_ends_too(make, monkeypatch, mariadb, proxy) -> None:
    """The server sends nothing for as long as the lock is held."""
    through = {**connection.settings_dict, "PORT": str(proxy.port)}
    monkeypatch.setitem(connections.settings, "far", through)
    near, far, root = make("default"), make("far"), Root(mariadb)
    with near.lock("it"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.lock("it").acquire, timeout=30)
        until(lambda: root.waits() == 1)
        proxy.hold()
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            waiting.result(30)
        assert time.monotonic() - began < BOUND
    for each in (near, far, root):
        each.close()


@pytest.fixture
def long_probe_timeout(monkeypatch) -> None:
    """Allow for a busy machine."""
    monkeypatch.setattr(stall_detector, "PROBE_TIMEOUT", 9.0)


def test_slow_statement_is_not_aborted(long_probe_timeout, connect) -> None:
    busy, other = connect(), connect()
    began = time.monotonic()
    slow = threading.Thread(target=lambda: took.append(ask(busy, SLEEP.format(1.2))))
    took: list[Any] = []
    slow.start()
    while slow.is_alive():
        assert ask(other) == 1
        slow.join(0.05)
    assert len(took) == 1
    assert time.monotonic() - began > 1.2


def test_slow_network_is_not_a_stall(long_probe_timeout, proxy, connect) -> None:
    on = connect()
    ask(on)
    proxy.delay = 0.2
    assert ask(on) == ask(on) == 1


@pytest.mark.only("mysql")
def test_new_connection_sends_two_messages(proxy, connect, monkeypatch) -> None:
    """The login and one message of settings; the third reads the version, once per thread."""
    monkeypatch.setattr(
        stall_detector, "STALL_AFTER", 60.0
    )  # the detector sends one query at its start
    first, second = connect(), connect()
    ask(first)
    until(lambda: proxy.request_count == 8, "four requests of `first` and four of the detector")
    ask(second)
    assert proxy.request_count == 8 + 4
    names = ("character_set_client", "autocommit", "sql_mode", "innodb_lock_wait_timeout")
    level = "tx_isolation" if second.mysql_is_mariadb else "transaction_isolation"
    for each in (first, second):
        with each.cursor() as cursor:
            cursor.execute("SELECT " + ", ".join(f"@@{name}" for name in (*names, level)))
            assert cursor.fetchone() == ("utf8mb4", 1, "STRICT_TRANS_TABLES", 3, "READ-COMMITTED")
            cursor.execute("SELECT '\N{SNOWMAN}\N{KEY}', %s", ["\N{KEY}"])
            assert cursor.fetchone() == ("\N{SNOWMAN}\N{KEY}", "\N{KEY}")


@pytest.mark.only("postgresql")
def test_session_of_postgresql_has_bounded_waits(connect) -> None:
    wanted = {
        "statement_timeout": "9s",
        "lock_timeout": "3s",
        "transaction_isolation": "read committed",
        "TimeZone": "UTC",
    }
    assert {name: ask(connect(), f"SHOW {name}") for name in wanted} == wanted


@pytest.mark.only("postgresql")
def test_lost_message_ends_the_wait(proxy, connect) -> None:
    """The server responds to others, so the wait ends with `response_timeout`."""
    on = connect()
    ask(on)
    on.connection.response_timeout = 1.0
    held = proxy.hold_request(containing=b"SELECT 'held'")
    assert 1.0 <= seconds_until_error(on, "SELECT 'held'") < BOUND
    assert held.is_held.is_set()
    on.close_if_unusable_or_obsolete()
    assert ask(on) == 1


@pytest.mark.only("postgresql")
def test_late_statement_has_a_known_end(connect) -> None:
    """The server ends it with a reply, and the connection serves the next one."""
    on = connect()
    ask(on, "SELECT set_config('statement_timeout', '200', FALSE)")
    with pytest.raises(OperationalError, match="statement timeout"):
        ask(on, SLEEP.format(9))
    assert ask(on) == 1


@pytest.mark.only("postgresql")
def test_read_only_server_counts_as_unavailable(connect) -> None:
    on = connect()
    ask(on, "SELECT set_config('default_transaction_read_only', 'on', FALSE)")
    with pytest.raises(OperationalError, match="read-only"):
        ask(on, "UPDATE inventory_stock SET quantity = 0")
