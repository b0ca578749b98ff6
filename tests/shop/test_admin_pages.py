"""What staff do in Django's admin: sales, restocking, the switch of the lock."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from unittest.mock import patch

import pytest
from django.utils import timezone

from inventory.models import Product, StockMovement
from locking import LockUnavailable, locks, policy
from locking.models import LockPolicy, LockPolicyChange
from shop.administration.audit import audit_sale
from shop.models import Order, Sale, User
from shop.sales.queries import create_sale
from tests.shop.making import a_sale, buy, fresh, put_in_force, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.mark.parametrize(
    "page",
    [
        *("inventory/product/", "inventory/stock/", "inventory/stockmovement/", "shop/sale/"),
        *("shop/order/", "shop/user/", "locking/lockpolicychange/", "inventory/product/add/"),
        "shop/sale/add/",
    ],
)
def test_admin_pages_open(amy, shop, page):
    buy(shop, a_sale())
    assert amy.get(f"/admin/{page}").status_code == 200


def test_orders_and_stock_are_read_only(amy, shop):
    sale = a_sale()
    buy(shop, sale)
    order, movement = Order.objects.get(), StockMovement.objects.first()
    rows = {"shop/order": order.pk, "inventory/stock": sale.stock_id}
    rows["inventory/stockmovement"] = movement.pk
    for page, pk in rows.items():
        assert amy.get(f"/admin/{page}/{pk}/change/").status_code == 200
        assert amy.post(f"/admin/{page}/{pk}/change/", {"quantity": 99}).status_code == 403
        assert amy.post(f"/admin/{page}/{pk}/delete/", {"post": "yes"}).status_code == 403
        assert amy.get(f"/admin/{page}/add/").status_code == 403
    form = {"price": "0.01", "limit_per_customer": 7, "stock": 1, "product": 1}
    for name in ("opens_at", "closes_at"):
        when = timezone.localtime(getattr(sale, name))
        form |= {f"{name}_0": f"{when:%Y-%m-%d}", f"{name}_1": f"{when:%H:%M:%S}"}
    assert amy.post(f"/admin/shop/sale/{sale.pk}/change/", form).status_code == 302
    changed = fresh(sale)
    assert (changed.price, changed.limit_per_customer) == (sale.price, 7)
    assert changed.stock_id == sale.stock_id


def test_staff_create_and_restock_a_sale(amy):
    product = Product.objects.create(slug="cup", name="Cup", price=3)
    form = {"product": product.pk, "slug": "cup", "price": "1.50", "quantity": 8}
    form |= {"limit_per_customer": 2, "opens_at_0": "2030-01-01", "opens_at_1": "12:00:00"}
    form |= {"closes_at_0": "2030-01-02", "closes_at_1": "12:00:00"}
    assert (
        amy.post("/admin/shop/sale/add/", {**form, "closes_at_0": "2029-01-01"}).status_code == 200
    )
    assert not Sale.objects.exists()
    assert amy.post("/admin/shop/sale/add/", form).status_code == 302
    sale = Sale.objects.get()
    assert (sale.price, sale.stock.quantity) == (Decimal("1.50"), 8)
    action = {"action": "restock", "_selected_action": sale.pk}
    for units, left in (("5", 13), ("0", 13), ("-1", 13), ("x", 13), ("9" * 30, 13), ("", 13)):
        amy.post("/admin/shop/sale/", {**action, "units": units})
        assert fresh(sale).stock.quantity == left
    assert audit_sale(sale=sale).ok


POLICY = "/admin/locking/lockpolicy/1/change/"


@pytest.mark.django_db(transaction=True)
def test_staff_switch_the_lock(amy):
    put_in_force("redis")  # which can tell that it has no holders
    assert amy.get("/admin/locking/lockpolicy/")["Location"] == POLICY
    page = amy.get(POLICY).text
    for alias in locks:
        assert f"<th>{alias}</th>" in page
    form = {"backend": "none", "strategy": "naive", "reason": "to show it", "step": "drain"}
    amy.post(POLICY, form)
    now = policy.current()
    assert (now.backend, now.strategy, now.epoch) == ("none", "naive", 2)
    change = LockPolicyChange.objects.get()
    assert (change.changed_by, change.reason, change.forced) == ("amy", "to show it", False)
    assert "can sell more than it has" in amy.get(POLICY).text


def test_failed_switch_shows_its_cause(amy):
    form = {"backend": "redis", "strategy": "fenced", "reason": "x", "step": "force"}
    with patch.object(locks["redis"], "probe", side_effect=LockUnavailable("redis is silent")):
        assert "edis is silent" in amy.post(POLICY, form, follow=True).text
    assert amy.post(POLICY, {**form, "backend": "nonsense"}).status_code == 200
    assert amy.post(POLICY, {**form, "reason": ""}).status_code == 200
    assert LockPolicy.objects.get().backend == "process"


def test_switch_is_cancelled(amy):
    policy.switch(backend="none", wait=False)
    form = {"backend": "none", "strategy": "naive", "reason": "x", "step": "drain"}
    assert "in progress" in amy.post(POLICY, form, follow=True).text
    amy.post(POLICY, {**form, "step": "cancel"})
    assert LockPolicy.objects.get().state == LockPolicy.State.STEADY


def test_switching_requires_its_permission():
    client = signed_in(User.objects.create(username="bo", is_staff=True))
    assert client.get(POLICY).status_code == 403
    form = {"backend": "none", "strategy": "naive", "reason": "x", "step": "force"}
    assert client.post(POLICY, form).status_code == 403
    assert LockPolicy.objects.get().backend == "process"


def test_product_with_sales_cannot_be_deleted(amy):
    product = Product.objects.create(slug="cup", name="Cup", price=3)
    now = timezone.now()
    create_sale(
        product=product,
        slug="cup",
        price=Decimal(1),
        quantity=1,
        opens_at=now,
        closes_at=now + timedelta(days=1),
    )
    amy.post(f"/admin/inventory/product/{product.pk}/delete/", {"post": "yes"})
    assert Product.objects.filter(pk=product.pk).exists()
