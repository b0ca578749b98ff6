"""Nothing that staff can write in the admin makes the ledger inconsistent."""

import re
import threading
from contextlib import closing
from datetime import timedelta
from functools import partial
from unittest.mock import patch

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import OperationalError, connection
from django.utils import timezone

from inventory import stock
from inventory.exceptions import OutcomeUnknown
from inventory.models import Product, Stock, StockMovement, WriteStrategy
from inventory.stock import commit
from locking import lock, locks
from locking.models import JobRun, LockPolicy
from locking.testing.calls import in_thread
from shop.administration.audit import audit_sale
from shop.administration.sale_management import restock_sale
from shop.errors import Overloaded, ServiceUnavailable
from shop.mail.kinds import kinds
from shop.mail.models import Message
from shop.models import Order, RejectedReservation, Sale, User
from shop.orders.service import cancel_order
from shop.reservations import store
from shop.sales.stock_lock import fence_of, lock_name
from tests.shop.admin_pages import act, correct, fields_of, messages, times
from tests.shop.making import a_customer, a_sale, fresh, put_in_force, signed_in, staff_with
from tests.shop.purchases import buy
from tests.shop.queued import a_queued_sale, ask, assert_sound, consume, told

pytestmark = [pytest.mark.django_db, pytest.mark.stores]
seen_by_threads = pytest.mark.django_db(transaction=True)

OURS = ("shop", "inventory", "locking", "loadtest", "waiting_room")
ACTIONS = ("restock", "reduce", "open_now", "close_now", "unlist", "clone")


@pytest.fixture(autouse=True)
def policy_in_force():
    put_in_force("redis")


@pytest.fixture
def sale() -> Sale:
    """Return a sale with a pending, a paid and a cancelled order, and units left."""
    sale = a_sale(stock=10)
    orders = [buy(sale, quantity=2).order for _ in range(3)]
    cancel_order(order=orders[0])
    Order.objects.filter(pk=orders[1].pk).update(status=Order.Status.PAID)
    return fresh(sale)


def test_ledger_stays_consistent_after_any_change(amy, sale):
    now, hours = timezone.now(), timedelta(hours=1)
    tried = [
        {"limit_per_customer": 1},
        {"limit_per_customer": 100},
        {"limit_per_customer": 0},
        times(now + hours, now + 2 * hours),
        times(now - 2 * hours, now - hours),
        times(now, now - hours),
        {"quantity": 99, "price": "0.01", "stock": 1, "product": 1, "fulfilment": "queued"},
    ]
    for changed in tried:
        assert correct(amy, sale, **changed).status_code in (200, 302)
        assert audit_sale(sale=fresh(sale)).ok, changed
    assert (fresh(sale).price, fresh(sale).is_queued) == (sale.price, False)
    for action in (*ACTIONS, "delete_selected"):
        act(amy, action, sale, units=3, post="yes", confirm=sale.slug)
        assert audit_sale(sale=fresh(sale)).ok, action
    for path in (
        f"inventory/product/{sale.product_id}/delete/",
        f"shop/user/{sale.orders.first().customer_id}/delete/",
        f"shop/sale/{sale.pk}/delete/",
        f"inventory/stock/{sale.stock_id}/delete/",
    ):
        amy.post(f"/admin/{path}", {"post": "yes"})
    customer = sale.orders.first().customer_id
    for path, pk in (("inventory/product", sale.product_id), ("shop/user", customer)):
        sent = {"action": "delete_selected", "_selected_action": pk, "post": "yes"}
        amy.post(f"/admin/{path}/", sent)
    listed = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": sale.product_id}
    amy.post("/admin/inventory/product/", {**listed, "_save": "Save"})
    assert not Product.objects.get().is_listed
    audit = audit_sale(sale=fresh(sale))
    assert (audit.ok, audit.initial, audit.held, audit.sold) == (True, 10, 2, 2)
    assert Order.objects.count() == 3


@seen_by_threads
@pytest.mark.parametrize("fulfilment", Sale.Fulfilment.values)
def test_restock_is_reported_as_done_whatever_fails_after_its_commit(amy, fulfilment):
    """A page "Please try again" led staff to add the units twice."""
    sale = a_sale(fulfilment=fulfilment)

    def fail(*_):
        raise OperationalError(2013, "Lost connection")

    def commit_and_break(statements):
        commit(statements)
        connection.execute_wrappers.append(fail)

    try:
        with patch("shop.administration.sale_management.stock.commit", commit_and_break):
            said = messages(act(amy, "restock", sale, units=5))
    finally:
        connection.execute_wrappers.remove(fail)
    assert said == f"Kettle ({sale.slug}): 5 units added."
    assert fresh(sale).stock.quantity == 15


def test_open_now_opens_an_upcoming_sale_only(amy):
    sale = a_sale(opens_in=3600)
    assert "is not open" in messages(act(amy, "close_now", sale))
    assert fresh(sale).phase() == Sale.Phase.BEFORE
    act(amy, "open_now", sale)
    assert fresh(sale).phase() == Sale.Phase.OPEN
    opened_at = fresh(sale).opens_at
    assert "has already opened or ended" in messages(act(amy, "open_now", sale))
    assert fresh(sale).opens_at == opened_at


def test_clone_opens_a_form_with_the_values_of_the_sale(amy, sale):
    where = act(amy, "clone", sale)["Location"]
    page = amy.get(where)
    filled = page.context["adminform"].form.initial
    assert (filled["product"], filled["price"]) == (sale.product_id, sale.price)
    assert filled["quantity"] == 10
    assert filled["closes_at"] - filled["opens_at"] == sale.closes_at - sale.opens_at
    assert Sale.objects.count() == 1, "nothing was made yet"
    sent = {**filled, **times(filled["opens_at"], filled["closes_at"])}
    assert amy.post(where, sent).status_code == 302
    made = Sale.objects.get(slug=f"{sale.slug}-2")
    assert audit_sale(sale=made).initial == 10
    assert audit_sale(sale=fresh(sale)).ok
    again = amy.get(where).context["adminform"].form.initial
    assert again["slug"] == f"{sale.slug}-3"
    for query in ("clone=0", "clone=x", f"clone={'9' * 30}", "opens_at=%00", "closes_at=x"):
        assert amy.get(f"/admin/shop/sale/add/?{query}").status_code == 200


def test_only_changed_fields_are_saved(amy, sale):
    """A queued sale may be loaded anew between reading the row and saving it."""
    save = Sale.save

    def meanwhile(self, *args, **kwargs):
        Sale.objects.filter(pk=self.pk).update(generation=77)
        save(self, *args, **kwargs)

    with patch.object(Sale, "save", meanwhile):
        correct(amy, sale, limit_per_customer=3)
    assert (fresh(sale).limit_per_customer, fresh(sale).generation) == (3, 77)


def _restock_between_read_and_write(sale: Sale, restock) -> None:
    """Restock after the read; write once the restock is done or waits for the lock."""
    name = lock_name(sale.pk)
    staff = threading.Thread(target=lambda: (restock(), connection.close()))
    with lock(name) as lease:
        reading = stock.claim_stock(
            stock_id=sale.stock_id, strategy=WriteStrategy.NAIVE, fence=fence_of(lease)
        )
        staff.start()
        while staff.is_alive() and not any(one.waiters for one in locks["redis"].inspect()):
            staff.join(0.01)
        commit(stock.reserve(reading=reading, orders=[("N", 1)]))
    staff.join(20)
    assert not staff.is_alive()


@seen_by_threads
@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("units", [5, -5])
def test_restock_waits_for_the_purchase(sale, units, is_guarded):
    """The control restocks without the lock, and is overwritten."""
    before = audit_sale(sale=sale).available
    if is_guarded:
        _restock_between_read_and_write(sale, partial(restock_sale, sale=sale, quantity=units))
    else:
        restock = stock.restock(stock_id=sale.stock_id, quantity=units)
        _restock_between_read_and_write(sale, partial(commit, restock))
    assert Stock.objects.get().quantity == before - 1 + (units if is_guarded else 0)


@seen_by_threads
@pytest.mark.parametrize("is_guarded", [True, False])
def test_units_that_are_removed_cannot_be_reserved(monkeypatch, is_guarded):
    """Customers reserve all that Redis offers while the database commits the removal."""
    queued = a_queued_sale(stock=10)
    ask(queued)

    def commit_late(statements):
        assert told(queued, 12)["queued"] == (5 if is_guarded else 9)
        return commit(statements)

    if not is_guarded:  # the control: reservations are rejected that the customers were told of
        monkeypatch.setattr(store, "take", lambda **_: None)
    with patch("shop.administration.sale_management.stock.commit", commit_late):
        assert restock_sale(sale=fresh(queued), quantity=-4)
    consume()
    assert RejectedReservation.objects.count() == (0 if is_guarded else 4)
    assert_sound(queued, held=6, left=0)


@seen_by_threads
def test_reserved_units_are_not_removed():
    queued = a_queued_sale(stock=5)
    for _ in range(3):
        ask(queued)
    assert not restock_sale(sale=fresh(queued), quantity=-3)
    assert restock_sale(sale=fresh(queued), quantity=-2)
    assert told(queued, 1) == {"SoldOut": 1}
    assert restock_sale(sale=fresh(queued), quantity=3)
    assert told(queued, 4) == {"queued": 3, "SoldOut": 1}
    consume()
    assert_sound(queued, held=6, left=0)
    upcoming = a_queued_sale(stock=5, opens_in=3600)
    assert restock_sale(sale=upcoming, quantity=-2)
    assert audit_sale(sale=fresh(upcoming)).initial == 3


@seen_by_threads
def test_restock_without_a_lock_grant_changes_nothing(sale, settings):
    settings.LOCK_TIMEOUT = 0.05

    def restock() -> None:
        with pytest.raises(Overloaded), closing(connection):
            restock_sale(sale=sale, quantity=5)

    with locks["redis"].lock(lock_name(sale.pk)):
        in_thread(restock)
    assert StockMovement.objects.filter(reason="stocked").count() == 1


BUSY = "its lock or its row was not free in time. Nothing was changed; try again."
NO_REPLY = "a store did not reply. Check the result before you retry."


@pytest.mark.parametrize(
    ("error", "advice"),
    [(Overloaded, BUSY), (ServiceUnavailable, NO_REPLY), (OutcomeUnknown, NO_REPLY)],
)
def test_restock_that_may_have_failed_asks_to_check_the_stock(amy, sale, error, advice):
    """A page "Please try again" would lead staff to add the units twice."""
    other = a_sale()
    sent = {"action": "restock", "_selected_action": [sale.pk, other.pk], "units": 5}

    def restock(*, sale: Sale, quantity: int) -> bool:
        is_done = restock_sale(sale=sale, quantity=quantity)
        if sale == other:
            raise error
        return is_done

    with patch("shop.admin.sales.restock_sale", restock):
        said = messages(amy.post("/admin/shop/sale/", sent))
    assert f"{sale.slug}): 5 units added." in said
    assert f"{other.slug}): {advice}" in said


@pytest.fixture
def ben() -> User:
    ben = User.objects.create(username="ben", is_staff=True)
    ben.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    return ben


def test_staff_with_view_permissions_change_nothing(ben, sale):
    """Staff without permissions see only the start page, and customers nothing."""
    client, unknown, customer = signed_in(ben), staff_with(), signed_in()
    now = timezone.now()
    JobRun.objects.create(digest="d", task="t", scheduled_for=now, lease_until=now, sent_at=now)
    for model, of in admin.site._registry.items():
        if model._meta.app_label in OURS and model is not LockPolicy:
            path = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
            assert client.get(f"{path}?q=x" if of.search_fields else path).status_code == 200, path
            assert client.get(f"{path}add/").status_code == 403, path
            assert (unknown.get(path).status_code, customer.get(path).status_code) == (403, 302)
    assert unknown.get("/admin/").status_code == 200
    switch = {"backend": "none", "mode": "naive", "reason": "x", "step": "force", "confirm": "none"}
    for one in (client, unknown):
        assert one.post("/admin/locking/lockpolicy/1/change/", switch).status_code == 403
    before = (Sale.objects.values().get(), Stock.objects.values().get())
    for action in ACTIONS:
        act(client, action, sale, units=3, confirm=sale.slug)
    assert (Sale.objects.values().get(), Stock.objects.values().get()) == before
    assert correct(client, sale, limit_per_customer=3).status_code == 403


def test_staff_cannot_grant_permissions(ben):
    ben.user_permissions.add(*Permission.objects.filter(content_type__model="user"))
    client, boss = signed_in(ben), User.objects.create_superuser("boss")
    for user in (ben, boss):
        page = f"/admin/shop/user/{user.pk}/"
        for where in ("change/", "password/", "delete/"):
            sent = {"username": "x", "is_superuser": "on", "post": "yes"}
            assert client.post(page + where, sent).status_code == 403
    customer = a_customer()
    form = {"username": "renamed", "is_staff": "on", "is_superuser": "on", "is_active": "on"}
    form |= {"date_joined_0": "2026-01-01", "date_joined_1": "12:00:00"}
    assert client.post(f"/admin/shop/user/{customer.pk}/change/", form).status_code == 302
    customer.refresh_from_db()
    assert (customer.username, customer.is_staff) == ("renamed", False)
    assert not customer.is_superuser
    sent = {"action": "delete_selected", "_selected_action": boss.pk, "post": "yes"}
    client.post("/admin/shop/user/", sent)
    assert User.objects.filter(pk=boss.pk).exists()


def test_older_page_of_an_account_does_not_open_it_again(amy):
    """One member of staff closes the account and takes its rights; another corrects its name."""
    user = User.objects.create(username="li", is_staff=True)
    right = Permission.objects.get(codename="view_order")
    user.user_permissions.add(right)
    page = f"/admin/shop/user/{user.pk}/change/"
    older = fields_of(amy.get(page))
    assert "initial-password" not in older
    del older["groups"]  # a browser sends nothing if none is chosen
    taken = ("is_active", "is_staff", "user_permissions")
    closed = {name: value for name, value in older.items() if name not in taken}
    assert amy.post(page, closed).status_code == 302
    assert amy.post(page, {**older, "first_name": "Lei"}).status_code == 302
    user.refresh_from_db()
    assert (user.first_name, user.is_active, user.is_staff) == ("Lei", False, False)
    assert not user.user_permissions.exists()
    opened = {**closed, "initial-is_active": "False", "is_active": "on"}
    del opened["initial-user_permissions"]
    assert amy.post(page, {**opened, "user_permissions": right.pk}).status_code == 302
    user.refresh_from_db()
    assert (user.is_active, user.user_permissions.get()) == (True, right)


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_index_begins_with_what_merchants_use(amy, language):
    amy.cookies["django_language"] = language
    shown = amy.get("/admin/").context["app_list"]
    apps = [app["app_label"] for app in shown]
    assert {model["object_name"] for model in shown[0]["models"][:2]} == {"Sale", "Order"}
    assert apps[:3] == ["shop", "inventory", "waiting_room"]
    assert len(apps) == len(set(apps)) > 3


def test_mail_is_named_and_leads_to_what_it_is_about(amy, sale):
    order = Order.objects.filter(status=Order.Status.PAID).get()
    for kind in [*kinds, "another"]:
        Message.objects.create(kind=kind, about=order.pk, customer=order.customer)
    assert f"{len(kinds) + 1} emails" in amy.get("/admin/mail/message/").text
    amy.cookies["django_language"] = "zh-hans"
    page = amy.get("/admin/mail/message/").text
    assert f'<a href="/admin/shop/order/{order.pk}/change/">{order.pk}</a>' in page
    assert re.findall(f">({'|'.join(kinds)})<", page) == []
