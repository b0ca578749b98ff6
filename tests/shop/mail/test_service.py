"""Each message is derived from the shop's rows, in the customer's language, and sent once."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connections
from django.test import Client
from django.utils import timezone

from inventory.models import Product
from locking.failpoints import armed
from shop import tasks
from shop.mail import service
from shop.mail.kinds import kinds
from shop.mail.models import Message
from shop.mail.service import ATTEMPTS, remind, send_mail
from shop.models import Order, Sale, User
from shop.orders.addresses import mark_shipped, save_address
from shop.orders.service import cancel_order
from shop.payments.service import approve, refund_payments, start_payment
from shop.web import accounts
from tests.shop.admin_pages import act, correct, times
from tests.shop.mail.conftest import Inbox, parts
from tests.shop.making import ADDRESS, a_sale, signed_in
from tests.shop.purchases import armed_once, buy
from tests.shop.races.race_worker import RaceWorker

pytestmark = pytest.mark.stores

State = Message.State


def an_order(li: User) -> Order:
    return buy(a_sale(), customer=li).order


def pay(li: User) -> None:
    assert approve(start_payment(order=an_order(li)))


def nearly_expire(li: User) -> None:
    soon = timezone.now() + timedelta(minutes=5)
    Order.objects.filter(pk=an_order(li).pk).update(pay_by=soon)


def pay_too_late(li: User) -> None:
    order = an_order(li)
    payment = start_payment(order=order)
    cancel_order(order=order)
    assert not approve(payment)
    assert send_mail() == 0, "the provider has not refunded it yet"
    assert refund_payments() == 1


def ship(li: User) -> None:
    pay(li)
    Order.objects.update(closed_at=timezone.now() - service.WINDOW)
    order = Order.objects.get()
    abroad = {"name": "Li Lei", "street": "1 Elm Street", "city": "York"}
    save_address(order=order, lines={**ADDRESS, **abroad})
    assert send_mail() == 0, "it is not shipped yet"
    assert mark_shipped(sale=order.sale, printed={order.pk: 1}) == 1


def ask_for_a_reminder(li: User) -> None:
    sale = a_sale(opens_in=1800)
    assert "Remind me when it opens" in signed_in(li).get(f"/sales/{sale.slug}/").text
    signed_in(li).post(f"/sales/{sale.slug}/remind/")
    assert "before the sale opens" in signed_in(li).get(f"/sales/{sale.slug}/").text
    assert send_mail() == 0, "too early"
    sale.opens_at = timezone.now() + timedelta(minutes=5)
    sale.save()


def forget_the_password(li: User) -> None:
    Client().post("/accounts/reset/", {"email": "LI@example.com"})


EVENTS = {
    pay: ("Order .* is confirmed", "订单 .* 已确认", "Thank you"),
    nearly_expire: ("Pay by ..:.. to keep your order", "请在 ..:.. 前付款", "Reserved for you"),
    pay_too_late: ("Refund for order", "退款通知", "You cancelled this order"),
    ship: ("Order .* is on its way", "订单 .* 已发货", "Shipped to"),
    ask_for_a_reminder: ("Kettle: opens at ..:..", "Kettle：..:.. 开抢", "Opens in"),
    forget_the_password: ("Set a new password", "设置新密码", "Set a new password"),
}


@pytest.mark.parametrize("chinese", [False, True], ids=["en", "zh"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_event_leads_to_one_message(inbox: Inbox, li: User, event: Callable, chinese: bool) -> None:
    english, translated, on_page = EVENTS[event]
    event(li)
    User.objects.update(language="zh-hans" if chinese else "")
    assert [send_mail(), send_mail()] == [1, 0]
    (message,) = inbox.received
    text, html = parts(message)
    assert re.search(translated if chinese else english, message["Subject"])
    assert message["To"] == "li@example.com"
    assert f'<html lang="{"zh-hans" if chinese else "en"}">' in html
    assert bool(re.search("[一-龥]", text)) == chinese
    (url,) = re.findall(r"https://shop\.example(/\S+)", text)
    assert f'href="https://shop.example{url}"' in html
    assert on_page in signed_in(li).get(url, follow=True).text


def test_reminders_are_limited_per_account_and_address(li: User, monkeypatch) -> None:
    """Anyone can enter the address of another person: it would get a message for each turn."""
    monkeypatch.setattr(accounts, "REMIND_LIMIT", "2/day")
    path = f"/sales/{a_sale(opens_in=1800).slug}/remind/"
    named = {name: f"{name}@example.com" for name in ("wang", "zhang")} | {"twin": li.email}
    others = {name: User.objects.create(username=name, email=of) for name, of in named.items()}
    none = User.objects.create(username="none"), User.objects.create(username="neither")
    asking = [li, li, li, others["twin"], others["wang"], *none, *none, others["zhang"]]
    codes = [signed_in(one).post(path).status_code for one in asking]
    assert codes == [302, 302, 429, 429, *[302] * 6]


def test_nothing_is_sent_that_is_not_due(inbox: Inbox, li: User, settings) -> None:
    """Control: the same rows lead to messages once they are due."""
    order = an_order(li)
    guest = User.objects.create(username="guest")
    remind(sale=a_sale(opens_in=300), customer=guest)
    assert send_mail() == 0, "most of the time to pay is left; the guest has no address"
    assert approve(start_payment(order=order))
    Order.objects.update(closed_at=timezone.now() - service.WINDOW)
    assert send_mail() == 0, "an old event"
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    Order.objects.update(closed_at=timezone.now())
    assert (send_mail(), Message.objects.count()) == (0, 0), "the shop sends no email"
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    User.objects.update(email="guest@example.com")
    assert send_mail() == 2


@pytest.mark.parametrize("is_true", [True, False])
def test_message_waits_for_a_server_that_is_down(smtp: Inbox, li: User, is_true: bool) -> None:
    """It is deleted if it is no longer true by then."""
    nearly_expire(li)
    assert [send_mail(), send_mail()] == [0, 0]
    assert (Message.objects.get().state, Message.objects.get().attempts) == (State.WAITING, 0)
    if not is_true:
        cancel_order(order=Order.objects.get())
    with smtp.listening():
        assert [send_mail(), send_mail()] == [is_true, 0]
    assert Message.objects.exists() == is_true


def test_new_opening_leads_to_another_reminder(inbox: Inbox, li: User, amy: Client) -> None:
    ask_for_a_reminder(li)
    assert [send_mail(), send_mail()] == [1, 0]
    sale = Sale.objects.get()
    for minutes, count in ((20, 0), (8, 1), (-1, 1)):
        opens_at = timezone.localtime() + timedelta(minutes=minutes)
        assert correct(amy, sale, **times(opens_at, sale.closes_at)).status_code == 302
        assert send_mail() == count


@pytest.mark.parametrize("is_early", [True, False])
def test_staff_who_open_a_sale_remind_its_customers(inbox, li, amy, is_early) -> None:
    remind(sale=a_sale(opens_in=1800 if is_early else 300), customer=li)
    assert send_mail() == (0 if is_early else 1)
    act(amy, "open_now", Sale.objects.get())
    remind(sale=Sale.objects.get(), customer=User.objects.create(email="late@example.com"))
    assert [send_mail(), send_mail()] == [1, 0]


def test_reminder_waits_while_its_page_is_hidden(inbox: Inbox, li: User) -> None:
    ask_for_a_reminder(li)
    for is_listed, count in ((False, 0), (True, 1)):
        Product.objects.update(is_listed=is_listed)
        assert send_mail() == count


def test_message_that_cannot_be_written_delays_no_other(inbox: Inbox, li: User, caplog) -> None:
    """The shop no longer has the application, or no longer knows the order's currency."""
    Message.objects.create(kind="removed", about=1, customer=li)
    pay(li)
    Order.objects.update(currency="XAU")
    pay(li)
    assert [send_mail(), send_mail()] == [1, 0]
    assert "KeyError: 'XAU'" in caplog.text


def test_time_limit_of_the_task_ends_the_run(inbox: Inbox, li: User, monkeypatch) -> None:
    pay(li)
    late = kinds["paid"]._replace(path=Mock(side_effect=SoftTimeLimitExceeded))
    monkeypatch.setitem(kinds, "paid", late)
    with pytest.raises(SoftTimeLimitExceeded):
        send_mail()
    assert Message.objects.get().due_at < timezone.now(), "it waits, as if its text were wrong"


def test_refused_message_is_tried_again_a_few_times(inbox: Inbox, li: User) -> None:
    pay(li)
    inbox.reply = lambda server: "451 later"
    for attempt in range(1, ATTEMPTS + 1):
        assert [send_mail(), send_mail()] == [0, 0], "the second is too early"
        message = Message.objects.get()
        assert message.attempts == attempt
        Message.objects.update(due_at=timezone.now())
    assert message.state == State.FAILED


def test_run_that_read_a_message_before_it_was_refused_waits(inbox: Inbox, li: User) -> None:
    pay(li)
    inbox.reply = lambda server: "451 later"
    with armed_once("mail.claim", send_mail):
        assert send_mail() == 0
    assert Message.objects.get().attempts == 1, "it was sent twice without a pause"


def hang_up_after(reply: bytes) -> Callable[[Any], str]:
    def answer(server: Any) -> str:
        server.transport.write(reply + b"\r\n")
        server.transport.close()
        return "451 later"

    return answer


@pytest.mark.parametrize(
    ("step", "refuse"),
    [
        ("at_recipient", lambda server: "421 later"),
        ("at_recipient", hang_up_after(b"450 later")),
        ("reply", hang_up_after(b"554 no")),
    ],
    ids=["421", "450", "554"],
)
def test_refusal_that_ends_the_connection_concerns_one_message(
    inbox: Inbox, li: User, caplog, step: str, refuse: Callable[[Any], str]
) -> None:
    def refuse_first(server: Any) -> str:
        setattr(inbox, step, lambda server: "250 OK")
        return refuse(server)

    pay(li)
    forget_the_password(li)
    setattr(inbox, step, refuse_first)
    assert send_mail() == 1
    states = Message.objects.order_by("state").values_list("state", "attempts")
    assert list(states) == [(State.SENT, 1), (State.WAITING, 1)]
    assert len(inbox.received) == 1
    assert "may have been sent" not in caplog.text


def test_message_without_a_reply_is_not_sent_again(inbox: Inbox, li: User, caplog) -> None:
    def hang_up(server) -> str:
        server.transport.close()
        return "250 OK"

    pay(li)
    inbox.reply = hang_up
    assert [send_mail(), send_mail()] == [0, 0]
    assert len(inbox.received) == 1
    assert Message.objects.get().state == State.SENDING
    assert "may have been sent" in caplog.text


@pytest.mark.parametrize(
    ("point", "state", "sent_by_next"),
    [("mail.claim", State.WAITING, 1), ("mail.accepted", State.SENDING, 0)],
)
def test_killed_worker_sends_no_message_twice(
    inbox: Inbox, li: User, database_url: str, monkeypatch, point, state, sent_by_next
) -> None:
    pay(li)
    monkeypatch.setenv("EMAIL_URL", f"smtp://127.0.0.1:{inbox.port}")
    with RaceWorker(database_url) as worker:
        worker.run_until(point, {"do": "send_mail"})
        worker.kill()
    assert Message.objects.get().state == state
    assert send_mail() == sent_by_next
    assert len(inbox.received) == 1


@pytest.mark.parametrize("is_guarded", [True, False], ids=["claimed", "control"])
def test_two_workers_send_a_message_once(
    inbox: Inbox, li: User, monkeypatch, is_guarded: bool
) -> None:
    """Both have read the message as waiting before either claims it."""
    pay(li)
    if not is_guarded:
        monkeypatch.setattr(service, "claim", lambda message: True)
    both = threading.Barrier(2)

    def work(_number: int) -> int:
        try:
            return send_mail()
        finally:
            connections.close_all()

    with armed("mail.claim", lambda: both.wait(20)), ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(work, range(2))) == (1 if is_guarded else 2)
    assert len(inbox.received) == (1 if is_guarded else 2)


def test_many_messages_wait_in_batches(inbox: Inbox, li: User, monkeypatch) -> None:
    monkeypatch.setattr(service, "BATCH", 2)
    for _number in range(5):
        pay(li)
    assert tasks.send_mail.apply().get() == 2
    assert Message.objects.count() == 2, "no more than can be sent are written"
    assert [send_mail() for _ in range(3)] == [2, 1, 0]
    assert len({message["Message-ID"] for message in inbox.received}) == 5


def test_old_rows_are_deleted(li: User) -> None:
    for days in (40, 1):
        message = Message.objects.create(kind="paid", about=days, customer=li)
        created_at = timezone.now() - timedelta(days=days)
        Message.objects.filter(pk=message.pk).update(created_at=created_at)
    remind(sale=a_sale(lasts=30), customer=li)
    remind(sale=a_sale(), customer=li)
    tasks.delete_old_mail()
    assert (Message.objects.get().about, li.reminder_set.count()) == (1, 1)
