"""Statements that one transaction executes."""

import pytest
from django.db import IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory.exceptions import OutcomeUnknown, OutOfStock
from inventory.models import Product, Stock, StockMovement, WriteStrategy
from inventory.statements import Statement, insert
from inventory.stock import Fence, claim_stock, commit, create_stock, reserve, restock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.mark.parametrize("strategy", WriteStrategy)
def test_failed_statement_rolls_back_its_transaction(strategy) -> None:
    """Runs outside of a test's transaction, where a server receives all statements at once."""
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    stock = create_stock(product=product, quantity=5)
    reading = claim_stock(stock_id=stock.pk, strategy=strategy, fence=Fence(epoch=1, token=1))
    statements = reserve(reading=reading, orders=[("A", 1)])
    movement = insert(
        StockMovement,
        stock_id=stock.pk,
        delta=-9,
        reason="reserved",
        created_at=timezone.now(),
        fence_epoch=0,
        fence_token=0,
    )
    nothing = Statement("UPDATE inventory_stock SET quantity = 0 WHERE id = %s", [0], OutOfStock)
    for broken in ([movement, *statements, nothing], [*statements, movement, movement, nothing]):
        with pytest.raises(OutOfStock):
            commit(broken)
    with pytest.raises(IntegrityError):
        commit([*statements, *reserve(reading=reading, orders=[("A", 1)])])
    assert Stock.objects.get().quantity == 5
    assert not StockMovement.objects.exclude(reason="stocked").exists()
    ids = commit(statements)
    assert StockMovement.objects.get(pk=ids[-1]).order_number == "A"
    assert Stock.objects.get().quantity == 4


RAISE = "DO $$ BEGIN RAISE 'Deadlock found' USING ERRCODE = '{}'; END $$"
REFUSED = {
    "mysql": ["SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'"],
    "postgresql": [RAISE.format("40P01"), RAISE.format("40001")],
}
END = {
    "mysql": "KILL CONNECTION_ID()",
    "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
}
VENDOR = connection.vendor


@pytest.fixture
def row() -> Stock:
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    return create_stock(product=product, quantity=5)


@pytest.fixture(params=["one message", "one by one"])
def sending(request, monkeypatch) -> None:
    """Send the statements of a transaction as usual, and as to a Galera cluster."""
    if request.param == "one by one":
        monkeypatch.setattr("inventory.stock.is_message_atomic", lambda: False)


@pytest.mark.only("mysql", "postgresql")
@pytest.mark.parametrize("error", REFUSED.get(VENDOR, []))
def test_error_with_a_reply_has_a_known_outcome(row, error, sending) -> None:
    with pytest.raises(OperationalError, match="Deadlock") as caught:
        commit([*restock(stock_id=row.pk, quantity=1), Statement(error, [])])
    assert not isinstance(caught.value, OutcomeUnknown)
    assert Stock.objects.get().quantity == 5


@pytest.mark.only("mysql", "postgresql")
def test_lost_connection_has_an_unknown_outcome(row, sending) -> None:
    """The connection ends within the transaction: the client cannot always know where."""
    lost = connection.connection
    with pytest.raises(OutcomeUnknown):
        commit([*restock(stock_id=row.pk, quantity=1), Statement(END[VENDOR], [])])
    assert connection.connection is not lost
    assert Stock.objects.get().quantity == 5, "it was rolled back in fact"


@pytest.mark.only("postgresql")
def test_error_of_the_commit_has_a_known_outcome(row) -> None:
    """PostgreSQL checks foreign keys at the end: the last reply is that of the COMMIT."""
    orphan = restock(stock_id=row.pk + 1, quantity=1)[1]
    with pytest.raises(IntegrityError, match="foreign key"):
        commit([*restock(stock_id=row.pk, quantity=1), orphan])
    assert connection.is_usable()
    assert Stock.objects.get().quantity == 5


@pytest.mark.only("postgresql")
def test_values_cannot_change_the_statements(row) -> None:
    """They are quoted by psycopg, also in one message with other statements."""
    number = "'; DELETE --%s\\"
    reading = claim_stock(stock_id=row.pk, strategy="conditional", fence=Fence(epoch=1, token=1))
    commit(reserve(reading=reading, orders=[(number, 1)]))
    assert StockMovement.objects.get(reason="reserved").order_number == number
    assert Stock.objects.get().quantity == 4
