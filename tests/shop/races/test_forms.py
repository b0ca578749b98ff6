"""One customer's forms and one order's steps, sent at once from several processes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from inventory.models import StockMovement
from shop.administration.audit import audit_sale
from shop.models import Order
from shop.orders.service import cancel_order
from tests.shop.making import a_customer, a_sale, put_in_force
from tests.shop.purchases import buy
from tests.shop.races.race_worker import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "control: no allowance"])
@pytest.mark.parametrize("has_bought", [False, True])
def test_two_forms_past_the_limit_check(processes, is_guarded, has_bought) -> None:
    put_in_force("none")
    sale, customer = a_sale(limit=1 + has_bought), a_customer()
    if has_bought:
        buy(sale, customer=customer, key="before")
    both, without = processes(2), [] if is_guarded else ["shop.purchase.place_order._quota"]
    for process, key in zip(both, "ab", strict=True):
        form = {"do": "buy", "sale": sale.pk, "customer": customer.pk, "key": key}
        process.run_until("stock.read", form, without=without)
    answers = [answer for process in both for answer in process.finish()]
    refused = "LimitReached" if is_guarded else None
    assert [answer.get("error") for answer in answers] == [None, refused]
    assert (Order.objects.count() > sale.limit_per_customer) is not is_guarded
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("backend", ["redis", "none"])
def test_concurrent_pay_cancel_and_expiry_end_in_one_state(processes, backend) -> None:
    put_in_force(backend)
    sale, customer = a_sale(stock=20, limit=20), a_customer()
    numbers = [buy(sale, customer=customer, key=str(n)).order.number for n in range(12)]
    # Due in a moment: some are paid in time, the others not.
    Order.objects.update(pay_by=timezone.now() + timedelta(milliseconds=200))
    payer, canceller, sweeper = all_three = processes(3)
    payer.prepare(*({"do": "pay", "order": number} for number in numbers))
    canceller.prepare(*({"do": "cancel", "order": number} for number in numbers))
    sweeper.prepare(*({"do": "expire"} for _ in range(4)))
    together(*all_three)
    told = {process: process.results() for process in all_three}
    swept = sum(answer["ok"] for answer in told[sweeper] + sweeper.run({"do": "expire"}))
    states = dict(Order.objects.values_list("number", "status"))
    for place, number in enumerate(numbers):
        yes = [told[process][place].get("ok") for process in (payer, canceller)]
        assert [word for word in yes if word] == [
            states[number] for _ in range(states[number] in ("paid", "cancelled"))
        ]
    assert Counter(states.values())["expired"] == swept
    assert "pending" not in states.values()
    returned = StockMovement.objects.filter(reason="returned")
    assert {line.order_number for line in returned} == {
        number for number, state in states.items() if state != "paid"
    }
    assert audit_sale(sale=sale).ok


def test_check_then_act_pays_a_cancelled_order(processes) -> None:
    """Control for the conditional UPDATE in shop.orders: the unit is sold and returned."""
    put_in_force("redis")
    sale = a_sale()
    order = buy(sale).order
    (payer,) = processes(1)
    payer.run_until("pay.checked", {"do": "pay_checking_first", "order": order.number})
    cancel_order(order=order)
    assert payer.finish()[0]["ok"] == "paid"
    assert not audit_sale(sale=sale).ok
