"""`manage.py seed`: consistent sales in every phase, and no change when it runs again."""

from io import StringIO

import pytest
from django.conf import settings
from django.contrib.auth import authenticate
from django.core.management import call_command

from inventory.models import Product, Stock, StockMovement
from shop.administration.audit import audit_all
from shop.management.commands.seed import DEMO_ACCOUNTS, PASSWORD
from shop.models import CustomerQuota, Order, Sale, User

pytestmark = pytest.mark.django_db


def seed(*options: str) -> str:
    out = StringIO()
    call_command("seed", *options, stdout=out)
    return out.getvalue()


def rows() -> list[int]:
    models = (Product, Stock, StockMovement, Sale, Order, CustomerQuota, User)
    return [model.objects.count() for model in models]


def test_seed_creates_consistent_sales_in_every_phase():
    """With a complete catalogue, and accounts that can sign in."""
    printed = seed()
    sales = Sale.objects.select_related("stock", "product")
    phases = [sale.phase() for sale in sales]
    assert phases.count("open") >= 5
    assert phases.count("before") >= 4
    assert phases.count("sold_out") == phases.count("ended") == 1
    assert any(
        0 < (sale.opens_at - sale.stock.movements.first().created_at).seconds < 125
        for sale in sales
        if sale.phase() == "before"
    )
    assert {sale.opens_at.second for sale in sales} == {0}  # pages show hours and minutes
    for sale in sales:  # the curve of units sold on a sale's page begins with its stock
        stocked, *sold = sale.stock.movements.order_by("pk").values_list("created_at", flat=True)
        assert all(stocked <= at for at in sold), sale.slug
    audits = list(audit_all())
    assert len(audits) == len(sales)
    assert all(audit.ok for audit in audits)
    assert Product.objects.count() >= 12
    for product in Product.objects.all():
        assert all((product.name_zh, product.description, product.description_zh))
        picture = settings.BASE_DIR / "static" / product.photo.name
        assert picture.stat().st_size < 4096
    assert PASSWORD in printed
    for name, role in DEMO_ACCOUNTS.items():
        assert name in printed
        user = authenticate(username=name, password=PASSWORD)
        assert user is not None
        assert user.has_perm("locking.switch_lock") == role.startswith("staff:")
        assert user.is_staff == role.startswith("staff")


def test_second_seed_changes_nothing():
    seed()
    before = rows()
    Product.objects.filter(slug="phone-x").update(name="Phone Y")
    seed()
    assert rows() == before
    assert Product.objects.get(slug="phone-x").name == "Phone Y"
