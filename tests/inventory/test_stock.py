"""Units are taken and put back under each write strategy; older fences are refused."""

import pytest
from django.db import IntegrityError, transaction
from django.db.models import F

from inventory.exceptions import OutOfStock, StaleFence
from inventory.models import Product, Stock, StockMovement, WriteStrategy
from inventory.stock import (
    Fence,
    StockReading,
    claim_stock,
    commit,
    count_stale_write,
    create_stock,
    fence_off,
    release,
    reserve,
    restock,
)

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

NAIVE, FENCED, CONDITIONAL = WriteStrategy.NAIVE, WriteStrategy.FENCED, WriteStrategy.CONDITIONAL
EVERY = pytest.mark.parametrize("strategy", [NAIVE, FENCED, CONDITIONAL])
NOT_NAIVE = pytest.mark.parametrize("strategy", [FENCED, CONDITIONAL])
EVERY_TOKEN = pytest.mark.parametrize("token", [7, None], ids=["lock's token", "row's token"])


@pytest.fixture
def stock() -> Stock:
    product = Product.objects.create(slug="kettle", name="Kettle", price=20)
    return create_stock(product=product, quantity=5)


def fence(token: int | None, epoch: int = 1) -> Fence:
    return Fence(epoch=epoch, token=token)


def read(stock: Stock, strategy: str, by: Fence) -> StockReading:
    return claim_stock(stock_id=stock.pk, strategy=strategy, fence=by)


def take(reading: StockReading, quantity: int = 1, order: str = "A") -> None:
    commit(reserve(reading=reading, orders=[(order, quantity)]))


def buy(stock: Stock, strategy: str, by: Fence, *, quantity: int = 1, order: str = "A") -> None:
    take(read(stock, strategy, by), quantity, order)


def put_back(stock: Stock, by: Fence, *, quantity: int = 1) -> None:
    commit(release(stock_id=stock.pk, orders=[("A", quantity)], fence=by))


def row(stock: Stock) -> Stock:
    return Stock.objects.get(pk=stock.pk)


def fence_of(stock: Stock) -> tuple[int, int]:
    return row(stock).fence_epoch, row(stock).fence_token


@EVERY
@EVERY_TOKEN
def test_reservation_changes_quantity_and_ledger(stock, strategy, token) -> None:
    buy(stock, strategy, fence(token), quantity=2)
    assert row(stock).quantity == 3
    line = StockMovement.objects.get(order_number="A")
    assert (line.delta, line.reason, line.fence_epoch) == (-2, "reserved", 1)
    assert line.quantity_after == (None if strategy == CONDITIONAL else 3)


@EVERY
@EVERY_TOKEN
def test_reservation_beyond_the_stock_is_refused(stock, strategy, token) -> None:
    with pytest.raises(OutOfStock):
        buy(stock, strategy, fence(token), quantity=6)
    buy(stock, strategy, fence(token), quantity=5, order="B")
    with pytest.raises(OutOfStock):
        buy(stock, strategy, fence(token), quantity=1, order="C")
    assert row(stock).quantity == 0


@EVERY
def test_only_naive_loses_an_update_of_two_holders(stock, strategy) -> None:
    """Both read before either wrote, as if both held the lock; the newer one writes first."""
    older, newer = (read(stock, strategy, fence(token)) for token in (1, 2))
    take(newer, 3, "B")
    if strategy == NAIVE:
        take(older, 3)
        assert row(stock).quantity == 2, "the control must sell six units of five"
        return
    with pytest.raises(StaleFence):
        take(older, 2)
    assert row(stock).quantity == 2


@NOT_NAIVE
def test_two_holders_that_write_in_token_order(stock, strategy) -> None:
    """Fenced refuses the older one, because the newer one has read; conditional accepts it."""
    older, newer = (read(stock, strategy, fence(token)) for token in (1, 2))
    if strategy == FENCED:
        with pytest.raises(StaleFence):
            take(older, 3)
    else:
        take(older, 3)
        with pytest.raises(OutOfStock):
            take(newer, 3, "B")
    assert row(stock).quantity == (5 if strategy == FENCED else 2)


@NOT_NAIVE
@pytest.mark.parametrize("older", [fence(6, 2), fence(99, 1), fence(None, 1)], ids=str)
def test_older_token_or_epoch_is_refused(stock, strategy, older) -> None:
    buy(stock, strategy, fence(7, epoch=2))
    with pytest.raises(StaleFence):
        buy(stock, strategy, older, order="B")
    assert row(stock).quantity == 4
    assert fence_of(stock) == (2, 7)


@NOT_NAIVE
@pytest.mark.parametrize(
    "newer", [fence(7, 2), fence(8, 2), fence(1, 3), fence(None, 2), fence(None, 3)], ids=str
)
def test_equal_or_newer_fence_is_accepted(stock, strategy, newer) -> None:
    """A later epoch is newer even if its token, of another backend, is smaller."""
    buy(stock, strategy, fence(7, epoch=2))
    buy(stock, strategy, newer, order="B")
    assert row(stock).quantity == 3
    assert fence_of(stock) >= (newer.epoch, newer.token or 8)


CHANGES = {
    "sold": lambda stock, token: buy(stock, CONDITIONAL, fence(token and token + 1), order="B"),
    "sold in a new epoch": lambda stock, token: buy(stock, FENCED, fence(token, 2), order="B"),
    "returned": lambda stock, token: put_back(stock, fence(token and token + 1)),
    "restocked": lambda stock, token: commit(restock(stock_id=stock.pk, quantity=10)),
}


@EVERY_TOKEN
@pytest.mark.parametrize("change", CHANGES)
def test_reading_is_stale_after_another_write(stock, token, change) -> None:
    """Also under a lock without tokens, for which the row has its own."""
    late = [read(stock, FENCED, fence(token)) for _ in range(2)]
    CHANGES[change](stock, token)
    left = row(stock).quantity
    for reading in late:
        with pytest.raises(StaleFence):
            take(reading, order="C")
    assert row(stock).quantity == left
    buy(stock, FENCED, fence(token and token + 2, epoch=2), order="C")
    assert row(stock).quantity == left - 1


def test_row_that_is_fenced_off_refuses_earlier_epochs(stock) -> None:
    buy(stock, CONDITIONAL, fence(7))
    fence_off(epoch=2)
    assert fence_of(stock) == (2, 0)
    with pytest.raises(StaleFence):
        buy(stock, CONDITIONAL, fence(99), order="B")
    buy(stock, CONDITIONAL, fence(1, epoch=2), order="B")


def test_release_under_an_older_fence_is_refused(stock) -> None:
    buy(stock, CONDITIONAL, fence(7, epoch=2))
    for older in (fence(6, 2), fence(99, 1), fence(None, 1)):
        with pytest.raises(StaleFence):
            put_back(stock, older)
    assert row(stock).quantity == 4
    assert not StockMovement.objects.filter(reason="returned").exists()


def test_units_of_an_order_move_once_each_way(stock) -> None:
    buy(stock, CONDITIONAL, fence(1))
    put_back(stock, fence(1))
    with pytest.raises(IntegrityError):
        put_back(stock, fence(1))
    with pytest.raises(IntegrityError):
        buy(stock, CONDITIONAL, fence(1))
    assert row(stock).quantity == 5


def test_stale_write_is_counted_with_the_newer_fence(stock) -> None:
    buy(stock, CONDITIONAL, fence(7, epoch=2))
    assert count_stale_write(stock_id=stock.pk) == fence(7, epoch=2)
    assert row(stock).stale_writes_refused == 1


def test_database_refuses_negative_stock(stock) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Stock.objects.filter(pk=stock.pk).update(quantity=F("quantity") - 6)
