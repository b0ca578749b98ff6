"""One idempotency key, sent by several processes at once, or again after the first was killed."""

from __future__ import annotations

import secrets

import pytest
from django.conf import settings
from django.contrib.auth.models import Group

from inventory.models import StockMovement
from locking.models import IdempotencyKey
from shop.administration.audit import audit_sale
from shop.models import CustomerQuota, Order, Sale, User
from shop.purchase import tokens
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import a_customer, a_sale, fresh, put_in_force, signed_in
from tests.shop.races.race_worker import RaceWorker, at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]
MYSQL = pytest.param("mysql_session", marks=pytest.mark.only("mysql"))


def session_of(customer: User) -> str:
    return signed_in(customer).cookies[settings.SESSION_COOKIE_NAME].value


@pytest.mark.parametrize("is_guarded", [True, False], ids=["one key", "control: no key"])
def test_fifty_parallel_sends_to_a_service(processes, is_guarded) -> None:
    answers = at_once(processes(4), [{"do": "act", "key": "k", "is_guarded": is_guarded}] * 50)
    assert not [answer for answer in answers if "error" in answer]
    assert len({answer["answer"] for answer in answers}) == (1 if is_guarded else 50)
    assert Group.objects.count() == (1 if is_guarded else 50)
    assert sum(not answer["is_replay"] for answer in answers) == Group.objects.count()


@pytest.mark.parametrize("place", ["idempotency.loaded", "act.acted", "act.committed"])
def test_next_request_finishes_the_key_of_a_killed_process(processes, place) -> None:
    first, other = processes(2)
    first.run_until(place, {"do": "act", "key": "k"})
    has_committed = place == "act.committed"
    other.start({"do": "act", "key": "k"})
    assert other.is_silent(0.3), "the first is still at work"
    assert Group.objects.count() == has_committed
    first.kill()
    (answer,) = other.results()
    written = str(Group.objects.get().pk)
    assert (answer["answer"], answer["is_replay"]) == (written, has_committed)
    assert other.run({"do": "act", "key": "k"})[0]["answer"] == answer["answer"]
    assert IdempotencyKey.objects.count() == Group.objects.count() == 1


def test_retry_after_a_kill_without_key_has_two_effects(processes) -> None:
    """The control of the test above."""
    first, other = processes(2)
    call = {"do": "act", "key": "k", "is_guarded": False}
    first.run_until("act.committed", call)
    first.kill()
    other.run(call)
    assert Group.objects.count() == 2


def test_row_alone_stops_a_second_effect(database_url) -> None:
    """Without a lock store: both have passed the check of the key before either writes."""
    closed_port = "redis://127.0.0.1:1/0"
    both = [RaceWorker(database_url, closed_port), RaceWorker(database_url, closed_port)]
    try:
        for process in both:
            process.run_until("idempotency.loaded", {"do": "act", "key": "k"})
        answers = [answer for process in both for answer in process.finish()]
    finally:
        for process in both:
            process.close()
    assert [answer["is_replay"] for answer in answers] == [False, True]
    assert answers[0]["answer"] == answers[1]["answer"] == str(Group.objects.get().pk)


@pytest.mark.parametrize("has_key", [True, False], ids=["one key", "control: a key each"])
@pytest.mark.parametrize(("verb", "status"), [("pay", "paid"), ("cancel", "cancelled")])
def test_fifty_parallel_sends_of_a_step(processes, verb, status, has_key) -> None:
    put_in_force("redis")
    sale, customer = a_sale(), a_customer()
    order = place_order(
        PurchaseRequest(customer_id=customer.pk, sale=fresh(sale), quantity=1, key="k")
    ).order
    call = {"do": "send", "path": f"{order.get_absolute_url()}{verb}/"}
    call["session"] = session_of(customer)
    keys = ["same" if has_key else str(number) for number in range(50)]
    answers = at_once(processes(4), [{**call, "form": {"idempotency_key": key}} for key in keys])
    said = [(answer["status"], answer["headers"], answer["body"]) for answer in answers]
    if has_key:
        assert [one for one in said if one != said[0]] == []
        assert said[0][0] == 200
    else:
        assert sorted(status for status, _, _ in said) == [200] + [409] * 49
    assert Order.objects.get().status == status
    assert StockMovement.objects.filter(reason="returned").count() == (verb == "cancel")
    assert IdempotencyKey.objects.count() == 1
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize(("verb", "status"), [("pay", "paid"), ("cancel", "cancelled")])
def test_step_in_flight_is_409_and_finished_after_a_kill(processes, verb, status) -> None:
    put_in_force("redis")
    sale, customer = a_sale(), a_customer()
    order = place_order(
        PurchaseRequest(customer_id=customer.pk, sale=fresh(sale), quantity=1, key="k")
    ).order
    call = {"do": "send", "path": f"{order.get_absolute_url()}{verb}/", "form": {}}
    call |= {"session": session_of(customer), "form": {"idempotency_key": "k"}}
    first, other = processes(2)
    first.run_until("idempotency.loaded", call)
    (told,) = other.run({**call, "patient": False})
    assert (told["status"], told["headers"]["Retry-After"]) == (409, "1")
    assert '"in_flight"' in told["body"]
    first.kill()
    assert other.run(call)[0]["status"] == 200
    order.refresh_from_db()
    assert order.status == status
    assert audit_sale(sale=sale).ok


ENTRIES = ["session", "token"]


def form_of(sale: Sale, customer: User, key: str = "k", entry: str = "session", **hint) -> dict:
    """Return a purchase. The session of one with a token is unknown, so only the token counts."""
    form = {"idempotency_key": key, "quantity": 1}
    session = session_of(customer) if entry == "session" else secrets.token_hex(16)
    if entry == "token":
        to = {"customer_id": customer.pk, "sale_id": sale.pk, "is_first": True, **hint}
        form["purchase_token"], _ = tokens.issue(key=key, session=session, **to)
    path = f"{sale.get_absolute_url()}buy/"
    return {"do": "send", "path": path, "session": session, "form": form}


@pytest.mark.parametrize("has_key", [True, False], ids=["one key", "control: a key each"])
@pytest.mark.parametrize("backend", ["redis", "none"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_fifty_parallel_sends_of_a_purchase(processes, has_key, entry, backend) -> None:
    put_in_force(backend)
    sale, customer = a_sale(stock=60, limit=60), a_customer()
    keys = ["same" if has_key else str(number) for number in range(50)]
    calls = [form_of(sale, customer, key, entry) for key in keys]
    answers = {
        (answer["status"], answer["headers"]["Location"], answer["body"])
        for answer in at_once(processes(4), calls)
    }
    assert len(answers) == Order.objects.count() == (1 if has_key else 50)
    assert CustomerQuota.objects.get().taken == len(answers)
    assert {status for status, _, _ in answers} == {201}
    assert audit_sale(sale=sale).ok


def assert_told_the_order(process: RaceWorker, call: dict) -> None:
    (told,) = process.run(call)
    order = Order.objects.get()
    assert (told["status"], told["headers"]["Location"]) == (201, order.get_absolute_url())


@pytest.mark.parametrize("backend", ["redis", "database", MYSQL])
@pytest.mark.parametrize("entry", ENTRIES)
def test_purchase_in_flight_is_503_and_is_finished_after_a_kill(processes, entry, backend) -> None:
    put_in_force(backend)
    sale = a_sale()
    call = form_of(sale, a_customer(), entry=entry)
    first, other = processes(2)
    first.run_until("stock.read", call)
    (told,) = other.run({**call, "patient": False})
    assert (told["status"], told["headers"]["Retry-After"]) == (503, "1")
    assert not Order.objects.exists()
    first.kill()
    assert_told_the_order(other, call)
    assert audit_sale(sale=sale).ok


@pytest.mark.parametrize("backend", ["redis", "none"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_purchase_killed_after_commit_is_replayed(processes, entry, backend) -> None:
    put_in_force(backend)
    sale = a_sale()
    call = form_of(sale, a_customer(), entry=entry, is_first=False)
    first, other = processes(2)
    first.run_until("stock.committed", call)
    assert_told_the_order(other, call)  # waits for no lock: the order is there
    first.kill()
    assert_told_the_order(other, call)


@pytest.mark.parametrize("others", ["same customer", "another customer"])
def test_key_counts_once_without_a_lock(processes, others) -> None:
    put_in_force("none")
    sale, customer = a_sale(), a_customer()
    is_same = others == "same customer"
    first, other = processes(2)
    first.run_until("stock.read", form_of(sale, customer))
    (told,) = other.run(form_of(sale, customer if is_same else a_customer()))
    (late,) = first.finish()
    assert told["status"] == late["status"] == 201
    assert (told["body"] == late["body"]) is is_same
    assert Order.objects.count() == (1 if is_same else 2)
