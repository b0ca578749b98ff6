"""Statements that one transaction executes."""

import pytest
from django.db import IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory.exceptions import OutcomeUnknown, OutOfStock
from inventory.models import Product, Stock, StockMovement, WriteStrategy
from inventory.statements import Statement, insert
from inventory.stock import Fence, commit, create_stock, read_stock, reserve, restock

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.mark.parametrize("strategy", WriteStrategy)
def test_failed_statement_rolls_back_its_transaction(strategy) -> None:
    """Runs outside of a test's transaction, where MariaDB receives all statements at once."""
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    stock = create_stock(product=product, quantity=5)
    reading = read_stock(stock_id=stock.pk, strategy=strategy, fence=Fence(epoch=1, token=1))
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


@pytest.mark.only("mysql")
def test_error_with_a_reply_has_a_known_outcome() -> None:
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    row = create_stock(product=product, quantity=5)
    deadlock = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'"
    with pytest.raises(OperationalError, match="Deadlock") as caught:
        commit([*restock(stock_id=row.pk, quantity=1), Statement(deadlock, [])])
    assert not isinstance(caught.value, OutcomeUnknown)
    assert Stock.objects.get().quantity == 5


@pytest.mark.only("mysql")
def test_lost_connection_has_an_unknown_outcome() -> None:
    """The connection ends within the message: here the client cannot know where."""
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    row = create_stock(product=product, quantity=5)
    end = Statement("KILL CONNECTION_ID()", [])
    with pytest.raises(OutcomeUnknown):
        commit([*restock(stock_id=row.pk, quantity=1), end])
    assert connection.connection is None
    assert Stock.objects.get().quantity == 5, "it was rolled back in fact"
