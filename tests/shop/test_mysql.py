"""The engine `shop.platform.mysql`: an unresponsive MariaDB is detected once per process."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from loadtest.faults.proxy import Proxy
from loadtest.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from shop.platform.mysql import base
from tests.locking.database_tools import Root, database, session

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.only("mysql"),
]
BOUND = 5.0
"""Seconds within which who waits for a silent server has to know; 0.9 on a quiet machine, and ten
where nobody watches."""


@pytest.fixture
def way() -> Iterator[Proxy]:
    with Proxy(int(connection.settings_dict["PORT"])) as way:
        yield way


@pytest.fixture
def connect(way: Proxy) -> Iterator[Callable[[], BaseDatabaseWrapper]]:
    """Makes connections through the proxy; mysqlclient alone would wait ten seconds on each."""
    made = []

    def make() -> BaseDatabaseWrapper:
        made.append(connections.create_connection("default"))
        made[-1].inc_thread_sharing()
        made[-1].settings_dict = {**made[-1].settings_dict, "PORT": str(way.port)}
        assert made[-1].get_connection_params()["read_timeout"] == 10
        return made[-1]

    yield make
    way.cut()
    way.resume()
    for each in made:
        each.close()


def ask(on: BaseDatabaseWrapper, sql: str = "SELECT 1") -> Any:
    with on.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def refused_after(on: BaseDatabaseWrapper, sql: str = "SELECT 1") -> float:
    """Seconds until it was told that there is no answer."""
    began = time.monotonic()
    with pytest.raises(OperationalError):
        ask(on, sql)
    return time.monotonic() - began


def test_one_finds_out_that_it_is_silent_for_all(way, connect) -> None:
    first, second = connect(), connect()
    assert ask(first) == ask(second) == 1
    way.hold()
    assert 0.2 < refused_after(first) < BOUND, "nobody lost anything"
    assert refused_after(second) < 0.5, "it was asked again"
    assert refused_after(connect()) < 0.5, "it was dialled again"
    way.cut()
    way.resume()
    until(lambda: not first.connection.watch.is_silent)
    for each in (first, second):
        each.close_if_unusable_or_obsolete()
        assert ask(each) == 1


def test_it_is_found_out_before_the_watch_has_a_line_of_its_own(way, connect, monkeypatch) -> None:
    """The server falls silent while the thread dials for the first time: greeted, but no more."""
    silent, dial = threading.Event(), base.MySQLdb.connect

    def late(**params: Any) -> Any:
        line = dial(**params)
        assert silent.wait(WAIT_TIMEOUT)
        line.query("DO 1")  # one of the things that are said on a new connection
        return line

    monkeypatch.setattr(base.MySQLdb, "connect", late)
    first = connect()
    assert ask(first) == 1
    way.hold()
    silent.set()
    assert refused_after(first) < BOUND


def test_all_who_wait_are_told_at_once(way, connect) -> None:
    """Also in a COMMIT, and between the answers of one message."""
    asks, commits, reads = connect(), connect(), connect()
    ask(asks)
    commits.set_autocommit(False)
    cursor = reads.cursor()
    cursor.execute("SELECT 1; SELECT SLEEP(9)")
    way.hold()
    took = []

    def wait(for_it: Callable[[], object]) -> None:
        began = time.monotonic()
        with pytest.raises(OperationalError):
            for_it()
        took.append(time.monotonic() - began)

    waits = (partial(ask, asks), commits.commit, cursor.nextset)
    threads = [threading.Thread(target=wait, args=(each,)) for each in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(took) == 3
    assert max(took) < BOUND


def test_who_begins_to_wait_while_all_are_cut_does_not_end_the_watch(connect) -> None:
    line = connect()
    ask(line)
    watch = line.connection.watch

    class Waits:
        @property
        def number(self) -> int:
            watch.begin(late)
            return -1

    late, first = object(), Waits()
    watch.begin(first)
    watch._cut()
    assert late in watch._waits
    for who in (first, late):
        watch.end(who)


@pytest.mark.parametrize("make", [database, session])
def test_who_waits_for_a_lock_in_it_is_told_too(make, monkeypatch, mariadb, way) -> None:
    """Without a word from the server for as long as the lock may take."""
    through = {**connection.settings_dict, "PORT": str(way.port)}
    monkeypatch.setitem(connections.settings, "far", through)
    near, far, root = make("default"), make("far"), Root(mariadb)
    with near.lock("it"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.lock("it").acquire, timeout=30)
        until(lambda: root.waits() == 1)
        way.hold()
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            waiting.result(30)
        assert time.monotonic() - began < BOUND
    for each in (near, far, root):
        each.close()


@pytest.fixture
def patience(monkeypatch) -> None:
    """However loaded the machine is."""
    monkeypatch.setattr(base, "WAIT_TIMEOUT", 9.0)


def test_a_busy_server_is_not_taken_for_a_silent_one(patience, connect) -> None:
    busy, other = connect(), connect()
    began = time.monotonic()
    slow = threading.Thread(target=lambda: took.append(ask(busy, "SELECT SLEEP(1.2)")))
    took: list[Any] = []
    slow.start()
    while slow.is_alive():
        assert ask(other) == 1
        slow.join(0.05)
    assert took == [0]
    assert time.monotonic() - began > 1.2


def test_what_is_slow_on_the_way_is_not_silent(patience, way, connect) -> None:
    line = connect()
    ask(line)
    way.delay = 0.2
    assert ask(line) == 1
    assert not line.connection.watch.is_silent


def test_a_new_connection_is_ready_after_two_messages(way, connect, monkeypatch) -> None:
    """Its name and password, and all that it wants to be; Django's own sends seven."""
    monkeypatch.setattr(base, "LATE", 60.0)  # else the watch may ask, too
    first, second = connect(), connect()
    ask(first)
    until(lambda: first.connection.watch._line is not None, "the watch's own line")
    asked = way.request_count
    ask(second)
    assert way.request_count == asked + 3
    names = ("character_set_client", "autocommit", "sql_mode", "innodb_lock_wait_timeout")
    level = "tx_isolation" if second.mysql_is_mariadb else "transaction_isolation"
    for each in (first, second):
        with each.cursor() as cursor:
            cursor.execute("SELECT " + ", ".join(f"@@{name}" for name in (*names, level)))
            assert cursor.fetchone() == ("utf8mb4", 1, "STRICT_TRANS_TABLES", 3, "READ-COMMITTED")
            cursor.execute("SELECT '\N{SNOWMAN}\N{KEY}', %s", ["\N{KEY}"])
            assert cursor.fetchone() == ("\N{SNOWMAN}\N{KEY}", "\N{KEY}")
