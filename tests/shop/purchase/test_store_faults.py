"""Stores that refuse or do not respond, and a schema or grants that do not fit the code.

A customer gets a 503 in bounded time, nothing changes, and the same form succeeds afterwards; no
reservation of a queued sale is lost. The log has a traceback if the code asks for what the database
does not have.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import pytest
import redis
from django.db import OperationalError, ProgrammingError, connection
from django.test import Client

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import Stock
from locking import locks
from locking.testing.calls import within
from shop.administration import alerts
from shop.administration.audit import audit_sale
from shop.models import CustomerQuota, Order, RejectedReservation, Sale
from shop.reservations import consumer
from tests.fault_rows import record_fault
from tests.shop.making import a_sale, buy, put_in_force, signed_in
from tests.shop.queued import a_queued_sale, ask, assert_sound, consume, status
from tests.shop.reservations.conftest import hasty

__all__ = ["hasty"]
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


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def while_in_force(broken: Sequence[str], repaired: Sequence[str]) -> Iterator[None]:
    execute(*broken)
    record_fault(broken[-1])
    try:
        yield
    finally:
        execute(*repaired)


def new_column() -> AbstractContextManager[None]:
    """What Django's AddField with a default leaves: a column without a default in the database."""
    return while_in_force(
        [
            "ALTER TABLE shop_order ADD COLUMN gift integer NOT NULL DEFAULT 0",
            "ALTER TABLE shop_order ALTER COLUMN gift DROP DEFAULT",
        ],
        ["ALTER TABLE shop_order DROP COLUMN gift"],
    )


def missing_table() -> AbstractContextManager[None]:
    return while_in_force(
        ["ALTER TABLE inventory_stockmovement RENAME TO elsewhere"],
        ["ALTER TABLE elsewhere RENAME TO inventory_stockmovement"],
    )


def missing_column() -> AbstractContextManager[None]:
    return while_in_force(
        ["ALTER TABLE shop_order RENAME COLUMN currency TO elsewhere"],
        ["ALTER TABLE shop_order RENAME COLUMN elsewhere TO currency"],
    )


@contextmanager
def revoked_insert() -> Iterator[None]:
    """The shop's user may do anything but add quotas."""
    if connection.vendor == "postgresql":
        with while_in_force(
            [
                "CREATE ROLE clerk",
                "GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk",
                "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO clerk",
                "REVOKE INSERT ON shop_customerquota FROM clerk",
                "SET ROLE clerk",
            ],
            ["RESET ROLE", "DROP OWNED BY clerk", "DROP ROLE clerk"],
        ):
            yield
        return
    tables = set(connection.introspection.table_names()) - {"shop_customerquota"}
    grants = [f"GRANT INSERT ON {table} TO clerk@'%'" for table in tables]
    allowed = "GRANT SELECT, UPDATE, DELETE ON *.* TO clerk@'%'"
    own = {name: connection.settings_dict[name] for name in ("USER", "PASSWORD")}
    with while_in_force(["CREATE USER clerk@'%'", allowed, *grants], ["DROP USER clerk@'%'"]):
        connection.close()
        connection.settings_dict |= {"USER": "clerk", "PASSWORD": ""}
        try:
            yield
        finally:
            connection.close()
            connection.settings_dict |= own


@contextmanager
def answering(code: str, *, once: bool = False) -> Iterator[None]:
    """Make the INSERT of an order raise this error of the server, which must happen."""
    fields = {"always": not once, "code": code, "text": HERE[code]}
    broken = [sql.format(**fields) for sql in SET_UP[connection.vendor]]
    with while_in_force(broken, CLEAN_UP[connection.vendor]):
        yield
        with connection.cursor() as cursor:
            cursor.execute(MET[connection.vendor])
            assert cursor.fetchone()[0], "the trigger did not run"


BUGS = {
    "missing column": missing_column,
    "missing table": missing_table,
    "revoked": revoked_insert,
}
MISFITS = {"new column": new_column, **BUGS}
FAULTS = {**MISFITS, **{code: partial(answering, code) for code in HERE}}


@pytest.mark.only("mysql", "postgresql")
@pytest.mark.faults(row=17, backend="database")
@pytest.mark.parametrize("fault", FAULTS)
def test_row_17_database_refuses(sale, li, fault, caplog) -> None:
    with FAULTS[fault]():
        told_to_come_back(sale, li)
    assert (fault in BUGS) == any(isinstance(one, ProgrammingError) for one in raised(caplog))
    sold_after_all(sale, li)


def raised(caplog: pytest.LogCaptureFixture) -> list[BaseException | None]:
    """Return the errors that the log shows with their traceback."""
    return [one.exc_info[1] for one in caplog.records if one.exc_info]


@pytest.mark.only("mysql", "postgresql")
def test_page_that_reads_a_missing_column_leaves_a_traceback_in_the_log(sale, li, caplog) -> None:
    buy(li, sale)
    with missing_column():
        assert li.get("/orders/").status_code == 503
    assert any(isinstance(one, ProgrammingError) for one in raised(caplog))


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


@pytest.mark.only("mysql", "postgresql")
@pytest.mark.parametrize("fault", MISFITS)
def test_reservations_outlast_a_database_that_refuses_orders(fault, caplog) -> None:
    sale, running = a_queued_sale(stock=40), consumer.Consumer(threading.Event())
    queued = [ask(sale) for _ in range(30)]
    with MISFITS[fault]():
        for _ in range(8):  # more than any number of attempts that the order writer makes
            running.round()
        assert {status(one) for one in queued} == {"waiting"}
        assert "cannot be written" in caplog.text
        alerts.update_metrics()
        assert alerts.WAITING.collect()[0].samples[0].value > 0
    consume()
    assert {status(one) for one in queued} == {"won"}
    assert not RejectedReservation.objects.exists()
    assert_sound(sale, held=30, left=10)


@pytest.mark.only("mysql", "postgresql")
def test_entry_that_fails_alone_is_rejected_and_delays_no_other() -> None:
    """One order violates a constraint that this code does not know; the others fit it."""
    sale = a_queued_sale(stock=200, limit=10)
    queued = [ask(sale, quantity=9 if number == 37 else 1) for number in range(100)]
    execute("ALTER TABLE shop_order ADD CONSTRAINT few CHECK (quantity < 9)")
    try:
        consume()
    finally:
        execute("ALTER TABLE shop_order DROP CONSTRAINT few")
    assert [status(one) for one in queued].count("won") == 99
    assert status(queued[37]) == "failed"
    assert_sound(sale, held=99, left=101)
