"""The audit finds and names every kind of inconsistency."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from inventory.models import Stock, StockMovement
from inventory.queries import Ledger, ledger_of
from shop.administration.audit import audit_all, audit_sale
from shop.models import Order, Sale
from shop.orders.service import cancel_order, pay_order
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import a_customer, a_sale, fresh
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]

WAITED = {"sqlite": 0.5, "mysql": 20, "postgresql": 20}
"""Seconds: a purchase waits for the audit on SQLite, and completes meanwhile on a server."""


@pytest.fixture
def sale() -> Sale:
    """Ten units: two paid, three held, one cancelled, so five are left."""
    sale = a_sale(stock=10)
    for quantity, step in ((2, pay_order), (3, None), (1, cancel_order)):
        order = buy(sale, quantity=quantity).order
        if step:
            step(order=order)
    return sale


@pytest.mark.django_db(transaction=True)
def test_concurrent_purchase_is_audited_completely_or_not(monkeypatch) -> None:
    sale, customer = fresh(a_sale(stock=10)), a_customer()

    def buy_here() -> None:
        place_order(PurchaseRequest(customer_id=customer.pk, sale=sale, quantity=1, key="k"))
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        bought, through = [], set()

        def ledger_then_purchase(**of: int) -> Ledger:
            ledger = ledger_of(**of)
            bought.append(pool.submit(buy_here))
            through.update(wait(bought, timeout=WAITED[connection.vendor]).done)
            return ledger

        monkeypatch.setattr("shop.administration.audit.ledger_of", ledger_then_purchase)
        assert audit_sale(sale=sale).breaches == ()
        bought[0].result(20)
    assert bool(through) == (connection.vendor != "sqlite"), "a server's buyers do not wait for it"


def order_of(sale: Sale, status: str) -> Order:
    return Order.objects.get(sale=sale, status=status)


def movement(sale: Sale, **what) -> None:
    StockMovement.objects.create(stock=sale.stock, **what)


def copy(order: Order, **changes) -> None:
    order.pk, order.number, order.key = None, "COPY", "copy"
    for name, value in changes.items():
        setattr(order, name, value)
    order.save()


def oversell(sale: Sale) -> None:
    """A naive writer overwrote another write: the order and its movement exist."""
    copy(order_of(sale, "paid"), quantity=6)
    movement(sale, delta=-6, reason="reserved", order_number="COPY")


def lose(sale: Sale) -> None:
    Stock.objects.update(quantity=2)


def find(sale: Sale) -> None:
    Stock.objects.update(quantity=6)


def forget_a_movement(sale: Sale) -> None:
    StockMovement.objects.filter(order_number=order_of(sale, "paid").number).delete()


def forget_an_order(sale: Sale) -> None:
    order_of(sale, "pending").delete()


def return_a_live_orders_units(sale: Sale) -> None:
    number = order_of(sale, "pending").number
    movement(sale, delta=3, reason="returned", order_number=number)
    Stock.objects.update(quantity=8)


def keep_a_cancelled_orders_units(sale: Sale) -> None:
    StockMovement.objects.filter(reason="returned").delete()
    Stock.objects.update(quantity=4)


def swap_two_orders_units(sale: Sale) -> None:
    """The sums agree; only the comparison by order shows it."""
    paid, held = order_of(sale, "paid"), order_of(sale, "pending")
    StockMovement.objects.filter(order_number=paid.number).update(delta=-3)
    StockMovement.objects.filter(order_number=held.number).update(delta=-2)


@pytest.mark.parametrize(
    ("harm", "says", "oversold", "lost"),
    [
        (oversell, "oversold: 11 promised of 10", 1, 0),
        (lose, "10 initial ≠ 2 available", 0, 3),
        (lose, "the ledger leaves 5, the row says 2", 0, 3),
        (find, "the ledger leaves 5, the row says 6", 0, 0),
        (forget_a_movement, "differ from the ledger", 0, 0),
        (forget_an_order, "10 initial ≠ 5 available + 0 held + 2 sold", 0, 3),
        (return_a_live_orders_units, "10 initial ≠ 8 available", 0, 0),
        (keep_a_cancelled_orders_units, "differ from the ledger", 0, 1),
        (swap_two_orders_units, "differ from the ledger", 0, 0),
    ],
)
def test_each_breach_is_found(sale, harm, says, oversold, lost) -> None:
    harm(sale)
    audit = audit_sale(sale=sale)
    assert not audit.ok
    assert any(says in breach for breach in audit.breaches), audit.breaches
    assert (audit.oversold, audit.lost) == (oversold, lost)


def test_inconsistent_sale_does_not_affect_others(sale) -> None:
    other = a_sale()
    Stock.objects.filter(pk=other.stock_id).update(quantity=1)
    assert {audit.sale: audit.ok for audit in audit_all()} == {sale.slug: True, other.slug: False}


def run(*args: str) -> tuple[str, int]:
    out, code = StringIO(), 0
    try:
        call_command("audit_stock", *args, stdout=out)
    except SystemExit as end:
        code = int(str(end.code))
    return out.getvalue(), code


def test_command_exits_by_its_verdict(sale) -> None:
    text, code = run()
    assert (sale.slug in text, "ok" in text, code) == (True, True, 0)
    text, code = run("--json")
    told = json.loads(text)
    assert (told["ok"], code) == (True, 0)
    assert (told["sales"][0]["sale"], told["sales"][0]["available"]) == (sale.slug, 5)
    lose(sale)
    told, code = run("--json")
    assert (json.loads(told)["ok"], code) == (False, 1)
    text, code = run()
    assert (code, "lost" in text or "initial" in text) == (1, True)
