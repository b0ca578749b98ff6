"""FAULTS rows 16 and 17 for a customer: a 503 in bounded time, no change, and recovery."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import redis
from django.db import OperationalError, connection
from django.test import Client

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import Stock
from locking import locks
from locking.testing.calls import within
from shop.models import CustomerQuota, Order, Sale
from tests.fault_rows import audit_sale, record_fault, record_outcome
from tests.shop.making import a_sale, buy, put_in_force, signed_in
from tests.shop.races.conftest import processes

__all__ = ["processes"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

BOUND = 30.0
"""Seconds, on a loaded machine, within which a customer must have a response."""


@pytest.fixture(autouse=True)
def _steady(in_force: None) -> Iterator[None]:
    yield
    locks.close()


@pytest.fixture
def sale() -> Sale:
    return a_sale(stock=2, limit=2)


@pytest.fixture
def li() -> Client:
    """Return the browser of a signed-in customer."""
    return signed_in(raise_request_exception=False)


def told_to_come_back(sale: Sale, client: Client) -> None:
    """Expect a 503 in time, with Retry-After, and no change."""
    with within(BOUND):
        response = buy(client, sale)
    assert response.status_code == 503
    assert int(response["Retry-After"]) > 0
    assert "Traceback" not in response.text
    assert Stock.objects.get(sale=sale).quantity == sale.stock.quantity
    assert not Order.objects.exists()
    assert not CustomerQuota.objects.exists()
    record_outcome("503")


def sold_after_all(sale: Sale, client: Client) -> None:
    """Send the same form after the fault."""
    assert buy(client, sale).status_code == 303
    assert audit_sale(sale=sale).ok
    assert Order.objects.count() == 1


@pytest.mark.faults(row=16, backend="database")
def test_row_16_client_stopped_inside_its_transaction(processes, sale, li, monkeypatch) -> None:
    (stopped,) = processes(1)
    stopped.run_until("row.held", {"do": "sit_on_the_row", "sale": sale.pk})
    with monkeypatch.context() as hasty:
        hasty.setattr("django.conf.settings.HARD_DEADLINE", 1.3)
        if connection.vendor == "sqlite":  # ten seconds are the shop's
            hasty.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.3)
        connection.close()  # this one and any that a request opens in its place
        with within(BOUND):
            response = buy(li, sale)
    assert response.status_code == 503
    record_outcome("503")
    stopped.finish()
    connection.close()
    sold_after_all(sale, li)


CODES: dict[str, dict[str, str]] = {
    "mysql": {
        "1020": "record has changed since last read",
        "1021": "disk full",
        "1040": "too many connections",
        "1114": "table full",
        "1205": "lock wait timeout",
        "1213": "deadlock",
        "1290": "read-only",
    },
    "postgresql": {
        "53100": "disk full",
        "53300": "too many connections",
        "55P03": "lock timeout",
        "40P01": "deadlock",
        "40001": "serialization failure",
        "25006": "read-only",
    },
    "sqlite": {},
}
HERE = CODES[connection.vendor]
SET_UP = {
    "mysql": [
        "SET @met = NULL",
        "CREATE TRIGGER refuses BEFORE INSERT ON shop_order FOR EACH ROW BEGIN "
        "IF {always} OR @met IS NULL THEN SET @met = 1; "
        "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{text}'; END IF; END",
    ],
    # A rollback does not undo nextval().
    "postgresql": [
        "CREATE SEQUENCE met",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('met') <= 1 + 98 * {always}::int THEN "
        "RAISE '{text}' USING ERRCODE = '{code}'; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER refuses BEFORE INSERT ON shop_order FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
}
MET = {"mysql": "SELECT @met = 1", "postgresql": "SELECT is_called FROM met"}
CLEAN_UP = {
    "mysql": ["DROP TRIGGER refuses"],
    "postgresql": ["DROP FUNCTION refuse() CASCADE", "DROP SEQUENCE met"],
}


@contextmanager
def answering(code: str, *, once: bool = False) -> Iterator[None]:
    """Make the INSERT of an order raise this error of the server, which must happen."""
    with connection.cursor() as cursor:
        for sql in SET_UP[connection.vendor]:
            cursor.execute(sql.format(always=not once, code=code, text=HERE[code]))
    record_fault(f"{connection.display_name} {code}")
    try:
        yield
        with connection.cursor() as cursor:
            cursor.execute(MET[connection.vendor])
            assert cursor.fetchone()[0], "the trigger did not run"
    finally:
        with connection.cursor() as cursor:
            for sql in CLEAN_UP[connection.vendor]:
                cursor.execute(sql)


@pytest.mark.only("mysql", "postgresql")
@pytest.mark.faults(row=17, backend="database")
@pytest.mark.parametrize("code", HERE)
def test_row_17_database_refuses(sale, li, code) -> None:
    with answering(code):
        told_to_come_back(sale, li)
    sold_after_all(sale, li)


@pytest.mark.only("mysql", "postgresql")
@pytest.mark.faults(row=17, backend="database")
@pytest.mark.parametrize(
    "code", [code for code in HERE if code in ("1020", "1213", "40P01", "40001")]
)
def test_row_17_deadlock_is_retried(sale, li, code) -> None:
    with answering(code, once=True):
        assert buy(li, sale).status_code == 303
    assert audit_sale(sale=sale).ok


@pytest.mark.only("sqlite")
@pytest.mark.faults(row=17, backend="database", fired="disk full")
def test_row_17_disk_is_full(li) -> None:
    sale = a_sale(stock=3000, limit=3000)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE padding (x BLOB)")
        try:
            (pages,) = cursor.execute("PRAGMA page_count").fetchone()
            cursor.execute(f"PRAGMA max_page_count = {pages}")
            with suppress(OperationalError):
                while True:
                    cursor.execute("INSERT INTO padding VALUES (zeroblob(4000))")
            before = 0
            for number in range(300):  # there is room yet in pages that have been begun
                before = Order.objects.count()
                response = buy(li, sale, key=f"k{number}")
                if response.status_code != 303:
                    break
            assert response.status_code == 503
            assert Order.objects.count() == before == number
            assert audit_sale(sale=sale).ok
        finally:
            cursor.execute("PRAGMA max_page_count = 1073741823")
            cursor.execute("DROP TABLE padding")
    assert buy(li, sale, key=f"k{number}").status_code == 303
    assert audit_sale(sale=sale).ok


def configure(server: Redis, name: str, value: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set(name, value)
    record_fault(f"{name} {value}")


BREAK_AND_REPAIR: dict[str, tuple[Callable[[Redis], None], Callable[[Redis], None]]] = {
    "killed": (Redis.kill, Redis.start),
    "unresponsive": (Redis.pause, Redis.resume),
    "full": (
        lambda server: configure(server, "maxmemory", "1"),
        lambda server: configure(server, "maxmemory", "0"),
    ),
}


@pytest.mark.faults(row=17, backend="redis")
@pytest.mark.parametrize("how", BREAK_AND_REPAIR)
def test_row_17_lock_store_fails(settings, sale, li, how) -> None:
    """The other stores and refusals are in tests/locking/backends."""
    break_it, repair = BREAK_AND_REPAIR[how]
    settings.BUY_LIMIT = "1000000/second"
    with Redis() as server:
        conf = {**settings.LOCKS["redis"], "LOCATION": server.url}
        settings.LOCKS = {**settings.LOCKS, "redis": conf}
        put_in_force("redis")
        locks["redis"].probe()
        break_it(server)
        told_to_come_back(sale, li)
        repair(server)
        until(lambda: buy(li, sale).status_code != 503, "a purchase", BOUND)
        sold_after_all(sale, li)
        locks.close()
