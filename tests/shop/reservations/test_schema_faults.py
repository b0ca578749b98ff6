"""A database whose schema or grants do not fit the code: no reservation is lost, buyers get 503."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import connection

from shop.administration import alerts
from shop.models import RejectedReservation
from shop.reservations import consumer
from tests.shop.making import a_sale, buy, signed_in
from tests.shop.queued import a_queued_sale, ask, assert_sound, consume, status

pytestmark = [
    pytest.mark.only("mysql", "postgresql"),
    pytest.mark.django_db(transaction=True),
]
JSON = "application/json"
ROUNDS = 8
"""More than any number of attempts that the order writer makes."""


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def while_in_force(broken: Sequence[str], repaired: Sequence[str]) -> Iterator[None]:
    execute(*broken)
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


FAULTS = pytest.mark.parametrize("fault", [new_column, missing_table, revoked_insert])


@FAULTS
def test_reservations_outlast_a_database_that_refuses_orders(fault: Callable, caplog) -> None:
    sale, running = a_queued_sale(stock=40), consumer.Consumer(threading.Event())
    queued = [ask(sale) for _ in range(30)]
    with fault():
        for _ in range(ROUNDS):
            running.round()
        assert {status(one) for one in queued} == {"waiting"}
        assert "cannot be written" in caplog.text
        alerts.update_metrics()
        assert alerts.WAITING.collect()[0].samples[0].value > 0
    consume()
    assert {status(one) for one in queued} == {"won"}
    assert not RejectedReservation.objects.exists()
    assert_sound(sale, held=30, left=10)


@FAULTS
def test_direct_buyer_is_asked_to_come_back(fault: Callable) -> None:
    """The same form succeeds as soon as the cause is removed."""
    sale, client = a_sale(), signed_in(raise_request_exception=False)
    with fault():
        for accept, sent in (("text/html", "text/html"), (JSON, "application/problem+json")):
            client.defaults["HTTP_ACCEPT"] = accept
            refused = buy(client, sale)
            assert (refused.status_code, refused["Content-Type"].partition(";")[0]) == (503, sent)
            assert int(refused["Retry-After"]) > 0
    client.defaults["HTTP_ACCEPT"] = "text/html"
    assert buy(client, sale).status_code == 303


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
