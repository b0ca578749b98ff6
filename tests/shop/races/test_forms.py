"""One customer's forms and one order's steps, sent at once from several processes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from inventory.models import StockMovement
from shop.administration.audit import audit_sale
from shop.models import CustomerQuota, Order, Sale, User
from shop.orders.service import cancel_order
from shop.purchase.place_order import place_order
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.races.race_worker import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


def form(sale: Sale, customer: User, key: str = "k") -> dict[str, object]:
    return {"do": "buy", "sale": sale.pk, "customer": customer.pk, "key": key}


@pytest.mark.parametrize("has_key", [True, False], ids=["one key", "control: a key each"])
@pytest.mark.parametrize("backend", ["redis", "none"])
def test_fifty_parallel_sends(processes, has_key, backend) -> None:
    put_in_force(backend)
    sale, customer = a_sale(stock=60, limit=60), a_customer()
    senders = processes(4)
    share = (13, 13, 12, 12)
    for place, process in enumerate(senders):
        keys = ("same" if has_key else f"{place}-{n}" for n in range(share[place]))
        process.prepare(*(form(sale, customer, key) for key in keys))
    together(*senders)
    answers = [answer for process in senders for answer in process.results()]
    numbers = Counter(answer.get("order", answer.get("error")) for answer in answers)
    orders = list(Order.objects.values_list("number", flat=True))
    assert set(numbers) == set(orders)
    assert (len(answers), len(orders)) == (50, 1 if has_key else 50)
    assert sum(not answer["replayed"] for answer in answers) == len(orders)
    assert CustomerQuota.objects.get().taken == len(orders)
    assert audit_sale(sale=sale).ok


def meet(processes, *forms: dict, without: tuple[str, ...] = ()) -> list[dict]:
    """Both have passed every check before either writes."""
    both = processes(len(forms))
    for process, each in zip(both, forms, strict=True):
        process.start(each, pause_at="purchase.check", without=without)
        process.reached()
    answers = []
    for process in both:
        process.proceed()
        answers += process.results()
    return answers


@pytest.mark.parametrize("keys", [("k", "k"), ("k", "l")], ids=["one key", "control: a key each"])
def test_two_equal_forms_past_the_key_check(processes, keys) -> None:
    put_in_force("none")
    sale, customer = a_sale(limit=2), a_customer()
    first, second = meet(processes, *(form(sale, customer, key) for key in keys))
    if keys == ("k", "k"):
        assert second == {**first, "replayed": True, "seconds": second["seconds"]}
    assert Order.objects.count() == len(set(keys))
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "control: no allowance"])
@pytest.mark.parametrize("has_bought", [False, True])
def test_two_forms_past_the_limit_check(processes, is_guarded, has_bought) -> None:
    put_in_force("none")
    sale, customer = a_sale(limit=1 + has_bought), a_customer()
    if has_bought:
        place_order(customer=customer, sale=fresh(sale), quantity=1, key="before")
    without = () if is_guarded else ("shop.purchase.place_order._quota",)
    answers = meet(processes, form(sale, customer, "a"), form(sale, customer, "b"), without=without)
    assert [answer.get("error") for answer in answers] == [
        None,
        "LimitReached" if is_guarded else None,
    ]
    bought = Order.objects.count()
    assert (bought > sale.limit_per_customer) is not is_guarded
    assert audit_sale(sale=sale).ok


def test_two_forms_within_the_limit_both_succeed(processes) -> None:
    put_in_force("none")
    sale, customer = a_sale(limit=2), a_customer()
    answers = meet(processes, form(sale, customer, "a"), form(sale, customer, "b"))
    assert all("order" in answer for answer in answers)
    assert CustomerQuota.objects.get().taken == 2


# --- one order's steps --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["redis", "none"])
def test_concurrent_pay_cancel_and_expiry_end_in_one_state(processes, backend) -> None:
    put_in_force(backend)
    sale = a_sale(stock=20, limit=20)
    customer = a_customer()
    numbers = [
        place_order(customer=customer, sale=fresh(sale), quantity=1, key=str(n)).order.number
        for n in range(12)
    ]
    # Due in a moment: some are paid in time, the others not.
    Order.objects.update(pay_by=timezone.now() + timedelta(milliseconds=200))
    payer, canceller, sweeper = all_three = processes(3)
    payer.prepare(*({"do": "pay", "order": number} for number in numbers))
    canceller.prepare(*({"do": "cancel", "order": number} for number in numbers))
    sweeper.prepare(*({"do": "expire"} for _ in range(4)))
    together(*all_three)
    told = {process: process.results() for process in all_three}
    sweeper.start({"do": "expire"})
    swept = sum(answer["ok"] for answer in told[sweeper] + sweeper.results())
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
    order = place_order(customer=a_customer(), sale=fresh(sale), quantity=1, key="k").order
    (payer,) = processes(1)
    payer.start({"do": "pay_checking_first", "order": order.number}, pause_at="pay.checked")
    payer.reached()
    cancel_order(order=order)
    payer.proceed()
    assert payer.results()[0]["ok"] == "paid"
    assert not audit_sale(sale=sale).ok


def test_payment_wins_over_a_paused_cancellation(processes) -> None:
    """The same schedule with the shop's own functions: the second one is refused."""
    put_in_force("redis")
    sale = a_sale()
    order = place_order(customer=a_customer(), sale=fresh(sale), quantity=1, key="k").order
    payer, canceller = processes(2)
    canceller.start({"do": "cancel", "order": order.number})
    payer.start({"do": "pay", "order": order.number})
    answers = canceller.results() + payer.results()
    assert sorted(answer.get("error", "ok") for answer in answers) == ["InvalidTransition", "ok"]
    assert audit_sale(sale=sale).ok
