"""A stock in segments, bought and given back by real processes."""

from __future__ import annotations

from collections import Counter

import pytest

from inventory.models import Stock, StockMovement
from inventory.selectors import rows_of
from locking import locks
from shop.audit import audit_sale
from shop.checkout import lock_of, place_order
from shop.models import Order, Sale
from shop.orders import cancel_order
from shop.segments import Part, parts_of
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.races.process import Process, together
from tests.shop.races.test_stock import a_form, outcomes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

GUARDS = [("redis", "naive"), ("database", "fenced"), ("none", "conditional"), ("none", "fenced")]


def quantities(sale: Sale) -> list[int]:
    return [row.quantity for row in rows_of(stock_id=sale.stock_id)]


def spread(sale: Sale, *pieces: int) -> None:
    """Put the sale's pieces where a test wants them; the books stay right."""
    for row, wanted in zip(rows_of(stock_id=sale.stock_id), pieces, strict=True):
        Stock.objects.filter(pk=row.pk).update(quantity=wanted)
        StockMovement.objects.filter(stock=row).update(delta=wanted)


def crowd(sale: Sale, racers: list[Process], each: int, **what: object) -> Counter[str]:
    for process in racers:
        process.prepare(*(a_form(sale, **what) for _ in range(each)))
    together(*racers)
    return outcomes(*(result for process in racers for result in process.results()))


@pytest.mark.parametrize(("backend", "discipline"), GUARDS)
def test_a_crowd_buys_exactly_what_lies_in_all_segments(processes, backend, discipline) -> None:
    put_in_force(backend, discipline)
    sale = a_sale(stock=11, segments=3)
    assert quantities(sale) == [4, 4, 3]
    assert crowd(sale, processes(4), 8) == {"order": 11, "SoldOut": 21}
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert (audit.initial, audit.available, audit.held) == (11, 0, 11)


def test_without_a_guard_a_segment_oversells(processes) -> None:
    """The control: both look at the same row, and the sum over all of them shows it."""
    put_in_force("none", "naive")
    sale = a_sale(stock=2, segments=2)
    spread(sale, 1, 0)
    both = processes(2)
    for process in both:
        process.start(a_form(sale), pause_at="purchase.check")
        process.reached()
    for process in both:
        process.on()
    assert outcomes(*(process.results()[0] for process in both)) == {"order": 2}
    audit = audit_sale(sale=sale)
    assert not audit.ok
    assert audit.oversold == 1


@pytest.mark.parametrize(("backend", "discipline"), GUARDS)
def test_pieces_that_lie_apart_are_all_sold(processes, backend, discipline) -> None:
    """Two pieces to each of three buyers, out of rows of one: taken from two rows at once, by all
    at the same time. One more is refused, and one piece is left that he could not use."""
    put_in_force(backend, discipline)
    sale = a_sale(stock=7, segments=7)
    assert crowd(sale, processes(4), 1, quantity=2) == {"order": 3, "SoldOut": 1}
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert audit.available == 1
    assert sorted(len(parts_of(order)) for order in Order.objects.all()) == [2, 2, 2]


@pytest.mark.parametrize("backend", ["redis", "database"])
def test_a_lock_holds_up_its_own_segment_alone(processes, backend) -> None:
    """The second process has another row: its buyer is served while the first one works."""
    put_in_force(backend, "naive")
    sale = a_sale(stock=4, segments=2)
    first, second, third = processes(3)
    forms = [a_form(sale, segment=segment) for segment in (0, 1, 0)]
    first.start(forms[0], pause_at="purchase.check")
    first.reached()
    second.start(forms[1])
    assert outcomes(*second.results()) == {"order": 1}
    third.start(forms[2], pause_at="purchase.check")
    assert third.is_silent(0.2), "it went past the lock of a row that another process holds"
    first.on()
    third.reached()
    third.on()
    assert outcomes(*first.results(), *third.results()) == {"order": 2}
    assert quantities(sale) == [0, 1]
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("looks_again", [True, False], ids=["as it is", "control"])
def test_a_row_that_was_emptied_meanwhile_sends_its_buyer_on(processes, looks_again) -> None:
    """The control is told that it is sold out while the other row has two pieces."""
    put_in_force("none", "conditional")
    sale = a_sale(stock=3, segments=2)
    spread(sale, 1, 2)
    late, early = processes(2)
    late.start(
        a_form(sale, segment=0),
        pause_at="purchase.check",
        without=() if looks_again else ("shop.checkout.choose_again",),
    )
    late.reached()
    early.start(a_form(sale, segment=0))
    assert outcomes(*early.results()) == {"order": 1}
    assert quantities(sale) == [0, 2]
    late.on()
    assert outcomes(*late.results()) == {"order" if looks_again else "SoldOut": 1}
    assert quantities(sale) == [0, 1 if looks_again else 2]
    assert audit_sale(sale=sale).ok


def test_buying_and_cancelling_over_several_rows_comes_to_an_end(processes) -> None:
    """Orders of two rows are closed while others are placed over the same rows."""
    put_in_force("redis", "fenced")
    sale = a_sale(stock=6, segments=6)
    placed = [
        place_order(customer=a_customer(), sale=fresh(sale), quantity=2, key="k").order
        for _ in range(3)
    ]
    assert quantities(sale) == [0] * 6
    cancelling, buying = processes(2)
    cancelling.prepare(*({"do": "cancel", "order": order.number} for order in placed))
    buying.prepare(*(a_form(sale, quantity=3) for _ in range(4)))
    together(cancelling, buying)
    assert [result.get("ok") for result in cancelling.results()] == ["cancelled"] * 3
    found = outcomes(*buying.results())
    assert found.keys() <= {"order", "SoldOut"}
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert audit.held == 3 * found["order"]


# --- one process ----------------------------------------------------------------------------------


def test_pieces_return_to_the_rows_that_they_came_from() -> None:
    put_in_force("redis")
    sale = a_sale(stock=5, segments=3)
    spread(sale, 1, 3, 1)
    order = place_order(customer=a_customer(), sale=fresh(sale), quantity=4, key="k").order
    assert sorted(part.quantity for part in parts_of(order)) == [1, 3]
    assert quantities(sale) in ([0, 0, 1], [1, 0, 0])
    cancel_order(order=order)
    assert quantities(sale) == [1, 3, 1]
    audit = audit_sale(sale=sale)
    assert audit.ok, audit.breaches
    assert audit.available == 5


def test_the_audit_sees_a_row_that_differs_though_the_sum_does_not() -> None:
    sale = a_sale(stock=4, segments=2)
    for row, quantity in zip(rows_of(stock_id=sale.stock_id), (3, 1), strict=True):
        Stock.objects.filter(pk=row.pk).update(quantity=quantity)
    breaches = audit_sale(sale=sale).breaches
    assert breaches == (
        "the ledger leaves 2, the row says 3",
        "the ledger leaves 2, the row says 1",
    )


def test_a_sale_is_sold_out_when_no_segment_has_a_piece() -> None:
    sale = a_sale(stock=2, segments=2)
    for pieces, phase in (((0, 2), "open"), ((1, 0), "open"), ((0, 0), "sold_out")):
        spread(sale, *pieces)
        assert fresh(sale).phase() == phase
        assert fresh(sale).left == sum(pieces)


@pytest.mark.parametrize("segment", [0, 1])
def test_a_stale_writer_is_counted_on_the_row_that_refused_it(processes, segment) -> None:
    """Its lock is broken in mid-work, and another buys from the same row."""
    put_in_force("redis", "fenced")
    sale = a_sale(stock=4, segments=2)
    first, second = processes(2)
    first.start(a_form(sale, segment=segment), pause_at="purchase.check")
    first.reached()
    row = rows_of(stock_id=sale.stock_id)[segment]
    assert locks["redis"].break_lock(lock_of(sale, Part(row.pk, 1)))
    second.start(a_form(sale, segment=segment))
    assert outcomes(*second.results()) == {"order": 1}
    first.on()
    assert outcomes(*first.results()) == {"order": 1}
    refused = [row.stale_writes_refused for row in rows_of(stock_id=sale.stock_id)]
    assert refused == [segment == 0, segment == 1]
    assert audit_sale(sale=sale).ok
