"""What each strategy writes, and whom it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from inventory import stock as services
from inventory.batch import Statement, commit, insert
from inventory.exceptions import OutOfStock, StaleFence
from inventory.models import Product, Stock, StockMovement
from inventory.stock import Fence, look
from locking.models import WriteStrategy

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

NAIVE, FENCED, CONDITIONAL = WriteStrategy.NAIVE, WriteStrategy.FENCED, WriteStrategy.CONDITIONAL
EVERY = pytest.mark.parametrize("strategy", [NAIVE, FENCED, CONDITIONAL])
EVERY_TOKEN = pytest.mark.parametrize("token", [7, None], ids=["lock's token", "row's token"])


@pytest.fixture
def stock() -> Stock:
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    return services.stock_up(product=product, quantity=5)


def take(*, seen: services.Look, quantity: int, order_number: str) -> None:
    commit(services.to_take(seen=seen, orders=[(order_number, quantity)]))


def put_back(**what: Any) -> None:
    commit(services.to_put_back(**what))


def fence(token: int | None, epoch: int = 1) -> Fence:
    return Fence(epoch=epoch, token=token)


def row(stock: Stock) -> Stock:
    return Stock.objects.get(pk=stock.pk)


def buy(stock: Stock, strategy: str, by: Fence, *, quantity: int = 1, order: str = "A") -> None:
    seen = look(stock_id=stock.pk, strategy=strategy, fence=by)
    take(seen=seen, quantity=quantity, order_number=order)


@EVERY
@EVERY_TOKEN
def test_taking_leaves_the_rest_and_a_line_in_the_ledger(stock, strategy, token) -> None:
    buy(stock, strategy, fence(token), quantity=2)
    assert row(stock).quantity == 3
    line = StockMovement.objects.get(order_number="A")
    assert (line.delta, line.reason, line.fence_epoch) == (-2, "reserved", 1)
    assert line.quantity_after == (None if strategy == CONDITIONAL else 3)


@EVERY
@EVERY_TOKEN
def test_more_than_there_is_is_refused(stock, strategy, token) -> None:
    with pytest.raises(OutOfStock):
        buy(stock, strategy, fence(token), quantity=6)
    buy(stock, strategy, fence(token), quantity=5, order="B")
    with pytest.raises(OutOfStock):
        buy(stock, strategy, fence(token), quantity=1, order="C")
    assert row(stock).quantity == 0


@EVERY
def test_two_that_looked_before_either_wrote(stock, strategy) -> None:
    """Both believe they hold the lock. Naive loses one of the updates; the others do not."""
    seen = [look(stock_id=stock.pk, strategy=strategy, fence=fence(t)) for t in (1, 2)]
    take(seen=seen[1], quantity=3, order_number="B")
    if strategy == NAIVE:
        take(seen=seen[0], quantity=3, order_number="A")
        assert row(stock).quantity == 2, "the control must sell six pieces of five"
        return
    with pytest.raises(StaleFence):
        take(seen=seen[0], quantity=2, order_number="A")
    assert row(stock).quantity == 2


@pytest.mark.parametrize("strategy", [FENCED, CONDITIONAL])
def test_two_that_looked_and_write_in_the_order_of_their_tokens(stock, strategy) -> None:
    """The older writes first: conditional may let it, fenced may not, as the newer has read."""
    seen = [look(stock_id=stock.pk, strategy=strategy, fence=fence(t)) for t in (1, 2)]
    if strategy == FENCED:
        with pytest.raises(StaleFence):
            take(seen=seen[0], quantity=3, order_number="A")
    else:
        take(seen=seen[0], quantity=3, order_number="A")
        with pytest.raises(OutOfStock):
            take(seen=seen[1], quantity=3, order_number="B")
    assert row(stock).quantity == (5 if strategy == FENCED else 2)


@pytest.mark.parametrize("strategy", [FENCED, CONDITIONAL])
@pytest.mark.parametrize("older", [fence(6, 2), fence(99, 1), fence(None, 1)], ids=str)
def test_an_older_token_or_epoch_is_refused(stock, strategy, older) -> None:
    buy(stock, strategy, fence(7, epoch=2))
    with pytest.raises(StaleFence):
        buy(stock, strategy, older, order="B")
    assert row(stock).quantity == 4
    assert (row(stock).fence_epoch, row(stock).fence_token) == (2, 7)


@pytest.mark.parametrize("strategy", [FENCED, CONDITIONAL])
@pytest.mark.parametrize(
    "newer", [fence(7, 2), fence(8, 2), fence(1, 3), fence(None, 2), fence(None, 3)], ids=str
)
def test_a_newer_token_or_epoch_is_taken(stock, strategy, newer) -> None:
    """Also a small token of another backend's under a later epoch."""
    buy(stock, strategy, fence(7, epoch=2))
    buy(stock, strategy, newer, order="B")
    assert row(stock).quantity == 3
    assert (row(stock).fence_epoch, row(stock).fence_token) >= (newer.epoch, newer.token or 8)


def test_fenced_lets_a_lock_without_tokens_fence_by_the_row(stock) -> None:
    """Of those who looked before anybody wrote, the first to write gets on, whoever looked last."""
    first, *others = [look(stock_id=stock.pk, strategy=FENCED, fence=fence(None)) for _ in range(3)]
    take(seen=first, quantity=1, order_number="A")
    assert (row(stock).fence_epoch, row(stock).fence_token) == (1, 1)
    for late in others:
        with pytest.raises(StaleFence):
            take(seen=late, quantity=1, order_number="B")
    assert row(stock).quantity == 4


def test_a_look_is_void_when_the_epoch_has_grown_since(stock) -> None:
    old = look(stock_id=stock.pk, strategy=FENCED, fence=fence(None))
    buy(stock, FENCED, fence(None, epoch=2))
    with pytest.raises(StaleFence):
        take(seen=old, quantity=1, order_number="B")
    assert row(stock).fence_epoch == 2


@EVERY_TOKEN
def test_a_holder_that_read_before_pieces_came_back_does_not_write_over_them(stock, token) -> None:
    buy(stock, CONDITIONAL, fence(token), quantity=5)
    seen = look(stock_id=stock.pk, strategy=FENCED, fence=fence(token))
    put_back(stock_id=stock.pk, quantity=5, order_number="A", fence=fence(token and token + 1))
    assert row(stock).quantity == 5
    if seen.quantity:
        pytest.fail("the fault did not fire: the holder read late")
    with pytest.raises(StaleFence):
        take(seen=seen, quantity=0, order_number="B")
    assert row(stock).quantity == 5


def test_a_naive_holder_does_write_over_them(stock) -> None:
    """The control: what only an honest lock prevents."""
    buy(stock, NAIVE, fence(1), quantity=4)
    seen = look(stock_id=stock.pk, strategy=NAIVE, fence=fence(1))
    put_back(stock_id=stock.pk, quantity=4, order_number="A", fence=fence(2))
    take(seen=seen, quantity=1, order_number="B")
    assert row(stock).quantity == 0, "four pieces are lost"


def test_pieces_are_not_returned_under_an_older_fence(stock) -> None:
    buy(stock, CONDITIONAL, fence(7, epoch=2))
    for older in (fence(6, 2), fence(99, 1), fence(None, 1)):
        with pytest.raises(StaleFence):
            put_back(stock_id=stock.pk, quantity=1, order_number="A", fence=older)
    assert row(stock).quantity == 4
    assert not StockMovement.objects.filter(reason="returned").exists()


def test_an_orders_pieces_move_once_each_way(stock) -> None:
    def give_back() -> None:
        put_back(stock_id=stock.pk, quantity=1, order_number="A", fence=fence(1))

    def take_again() -> None:
        buy(stock, CONDITIONAL, fence(1))

    buy(stock, CONDITIONAL, fence(1))
    give_back()
    for again in (give_back, take_again):
        with pytest.raises(IntegrityError):
            again()
    assert row(stock).quantity == 5


def test_restocking_reaches_a_holder_that_has_read(stock) -> None:
    seen = look(stock_id=stock.pk, strategy=FENCED, fence=fence(1))
    services.restock(stock_id=stock.pk, quantity=10)
    with pytest.raises(StaleFence):
        take(seen=seen, quantity=1, order_number="A")
    buy(stock, FENCED, fence(2), order="A")
    assert row(stock).quantity == 14


def test_a_refusal_is_counted_and_names_the_newer_fence(stock) -> None:
    buy(stock, CONDITIONAL, fence(7, epoch=2))
    assert services.count_stale_write(stock_id=stock.pk) == fence(7, epoch=2)
    assert row(stock).stale_writes_refused == 1


def test_the_database_itself_refuses_stock_below_nothing(stock) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Stock.objects.filter(pk=stock.pk).update(quantity=F("quantity") - 6)


@pytest.mark.django_db(transaction=True)
@EVERY
def test_a_refusal_writes_nothing_of_its_transaction(stock, strategy) -> None:
    """Outside a test's own transaction, where MariaDB gets all statements in one message."""
    seen = look(stock_id=stock.pk, strategy=strategy, fence=fence(1))
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
    statements = services.to_take(seen=seen, orders=[("A", 1)])
    for broken in ([movement, *statements, nothing], [*statements, movement, movement, nothing]):
        with pytest.raises(OutOfStock):
            commit(broken)
    with pytest.raises(IntegrityError):
        commit([*statements, *services.to_take(seen=seen, orders=[("A", 1)])])
    assert row(stock).quantity == 5
    assert not StockMovement.objects.exclude(reason="stocked").exists()
    ids = commit(statements)
    assert StockMovement.objects.get(pk=ids[-1]).order_number == "A"
    assert row(stock).quantity == 4
