"""One customer's forms and one order's steps, sent at once or again after a process was killed.

tests/locking/test_idempotency.py has the faults of an attempt, and all keys that are refused.
"""

from collections import Counter
from datetime import timedelta

import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from inventory.models import StockMovement
from locking.models import IdempotencyKey
from shop.administration.audit import audit_sale
from shop.models import CustomerQuota, Order
from tests.locking.scripted import unavailable
from tests.shop.making import a_customer, a_sale, put_in_force, signed_in
from tests.shop.purchases import buy
from tests.shop.races.race_worker import RaceWorker, at_once, end_leases, form_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]
SENDS = 20
MYSQL = pytest.param("mysql_session", marks=pytest.mark.only("mysql"))


def step_of(order: Order, verb: str) -> dict:
    session = signed_in(order.customer).cookies[settings.SESSION_COOKIE_NAME].value
    path = f"{order.get_absolute_url()}{verb}/"
    return {"do": "send", "path": path, "session": session, "form": {"idempotency_key": "k"}}


@pytest.mark.parametrize(
    ("verb", "status", "has_key"),
    [
        ("pay", "paid", True),
        ("cancel", "cancelled", True),
        ("cancel", "cancelled", False),  # the control: a key each
    ],
)
def test_many_parallel_sends_of_a_step(processes, verb, status, has_key) -> None:
    put_in_force("redis")
    sale = a_sale()
    call = step_of(buy(sale).order, verb)
    keys = ["same" if has_key else str(number) for number in range(SENDS)]
    answers = at_once(processes(4), [{**call, "form": {"idempotency_key": key}} for key in keys])
    said = [(answer["status"], answer["headers"], answer["body"]) for answer in answers]
    if has_key:
        assert [one for one in said if one != said[0]] == []
        assert said[0][0] == 200
    else:
        assert sorted(status for status, _, _ in said) == [200] + [409] * (SENDS - 1)
    assert Order.objects.get().status == status
    assert StockMovement.objects.filter(reason="returned").count() == (verb == "cancel")
    assert IdempotencyKey.objects.count() == 1
    assert audit_sale(sale=sale).ok


def test_step_in_flight_is_409_and_finished_after_a_kill(processes) -> None:
    put_in_force("redis")
    sale = a_sale()
    call = step_of(buy(sale).order, "cancel")
    first, other = processes(2)
    first.run_until("idempotency.loaded", call)
    (told,) = other.run({**call, "patient": False})
    assert (told["status"], told["headers"]["Retry-After"]) == (409, "1")
    assert '"in_flight"' in told["body"]
    first.kill()
    end_leases("redis")
    assert other.run(call)[0]["status"] == 200
    assert Order.objects.get().status == "cancelled"
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("has_key", [True, False], ids=["one key", "control: a key each"])
def test_many_parallel_sends_of_a_purchase(processes, has_key) -> None:
    put_in_force("redis")
    sale, customer = a_sale(stock=30, limit=30), a_customer()
    keys = ["same" if has_key else str(number) for number in range(SENDS)]
    told = at_once(processes(4), [form_of(sale, customer, key) for key in keys])
    assert Counter(answer["status"] for answer in told) == {201: SENDS}
    answers = {(answer["headers"]["Location"], answer["body"]) for answer in told}
    assert len(answers) == Order.objects.count() == (1 if has_key else SENDS)
    assert CustomerQuota.objects.get().taken == len(answers)
    assert audit_sale(sale=sale).ok


def assert_told_the_order(process: RaceWorker, call: dict) -> None:
    (told,) = process.run(call)
    order = Order.objects.get()
    assert (told["status"], told["headers"]["Location"]) == (201, order.get_absolute_url())


@pytest.mark.parametrize("backend", ["redis", "database", MYSQL])
def test_purchase_in_flight_is_503_and_is_finished_after_a_kill(processes, backend) -> None:
    put_in_force(backend)
    sale = a_sale()
    call = form_of(sale, a_customer())
    first, other = processes(2)
    first.run_until("stock.read", call)
    (told,) = other.run({**call, "patient": False})
    assert (told["status"], told["headers"]["Retry-After"]) == (503, "1")
    assert not Order.objects.exists()
    first.kill()
    if backend != "mysql_session":  # whose lock ends with the process
        end_leases(backend)
    assert_told_the_order(other, call)
    assert audit_sale(sale=sale).ok


def test_purchase_killed_after_commit_is_replayed(processes) -> None:
    put_in_force("redis")
    call = form_of(a_sale(), a_customer(), is_first=False)
    first, other = processes(2)
    first.run_until("stock.committed", call)
    assert_told_the_order(other, call)  # waits for no lock: the order is there
    first.kill()
    assert_told_the_order(other, call)


def test_key_counts_once_without_a_lock(processes) -> None:
    put_in_force("none")
    call = form_of(a_sale(), a_customer())
    first, other = processes(2)
    first.run_until("stock.read", call)
    assert_told_the_order(other, call)
    assert first.finish()[0]["status"] == 201
    assert Order.objects.count() == 1


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "control: no quota"])
@pytest.mark.parametrize("has_bought", [False, True])
def test_two_forms_past_the_limit_check(processes, is_guarded, has_bought) -> None:
    put_in_force("none")
    sale, customer = a_sale(limit=1 + has_bought), a_customer()
    if has_bought:
        buy(sale, customer=customer, key="before")
    both, without = processes(2), [] if is_guarded else ["shop.sales.purchase_request._quotas"]
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
    for process in all_three:
        process.go()
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


# --- in one process: what is not stored under a key -----------------------------------------------

JSON = {"Accept": "application/json"}


def browser(order: Order) -> Client:
    return signed_in(order.customer, raise_request_exception=False)


def send(client: Client, order: Order, verb: str, key: str = "k", **headers: str) -> HttpResponse:
    path = f"{order.get_absolute_url()}{verb}/"
    return client.post(path, {"idempotency_key": key}, headers=headers)


def said(response: HttpResponse) -> tuple[object, ...]:
    """Return a response without its date and its request id."""
    own = ("Expires", "X-Request-ID")
    headers = {name: value for name, value in response.items() if name not in own}
    return response.status_code, headers, response.content


def test_key_belongs_to_one_step_order_and_customer(guard) -> None:
    sale = a_sale()
    mine, other = buy(sale).order, buy(sale).order
    second = buy(sale, customer=mine.customer, key="l").order
    first = send(browser(mine), mine, "pay")
    assert first.status_code == 303
    assert said(send(browser(mine), mine, "pay")) == said(first)
    assert send(browser(other), other, "pay").status_code == 303, "a key is the customer's own"
    for order, verb in ((mine, "cancel"), (second, "pay")):
        refused = send(browser(mine), order, verb, **JSON)
        assert (refused.status_code, refused.json()["error"]) == (422, "key_reused")
        page = send(browser(mine), order, verb).text
        assert "Open the order again to see its state" in page
        assert "to place another order" not in page
    second.refresh_from_db()
    assert second.status == "pending"


def test_undecided_response_is_not_stored(guard, order) -> None:
    client = browser(order)
    guard.then("acquire", unavailable)
    down = send(client, order, "cancel", **JSON)
    assert (down.status_code, down.json()["error"]) == (503, "store_down")
    assert down["Retry-After"]
    guard.then("acquire", unavailable)
    assert send(client, order, "cancel", "my-own-key").text.count("my-own-key") == 1
    assert not IdempotencyKey.objects.exists()
    assert send(client, order, "cancel", **JSON).json()["status"] == "cancelled"


def test_paying_needs_no_lock_service(guard, settings, order) -> None:
    settings.LOCK_POLICY = {**settings.LOCK_POLICY, "BACKEND": "scripted"}
    guard.then("acquire", unavailable)
    first = send(browser(order), order, "pay")
    assert first.status_code == 303
    assert guard.times("acquire")
    assert said(send(browser(order), order, "pay")) == said(first)
