"""Sales, customers and policies for tests."""

import re
import secrets
from datetime import timedelta
from decimal import Decimal
from html import unescape
from typing import Any

from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from inventory.models import Product
from locking import policy
from locking.models import LockPolicy
from shop.models import Sale, User
from shop.sales.queries import create_sale

ADDRESS = {
    "name": "李雷",
    "phone": "+86 138-0013-8000",
    "street": "中山东一路 123 号",
    "city": "上海市",
    "postcode": "200002",
    "country": "",
}
PASSWORD = "a-red-kettle-9"  # noqa: S105


def a_sale(
    *,
    stock: int = 10,
    limit: int = 5,
    opens_in: float = -60,
    lasts: float = 3600,
    fulfilment: str = Sale.Fulfilment.DIRECT,
) -> Sale:
    """Create a sale with `stock` units; times are seconds from now."""
    slug = f"sale-{secrets.token_hex(4)}"
    opens_at = timezone.now() + timedelta(seconds=opens_in)
    return create_sale(
        product=Product.objects.create(slug=slug, name="Kettle", price=Decimal("20")),
        slug=slug,
        price=Decimal("9.90"),
        quantity=stock,
        opens_at=opens_at,
        closes_at=opens_at + timedelta(seconds=lasts),
        limit_per_customer=limit,
        fulfilment=fulfilment,
    )


def a_customer() -> User:
    return User.objects.create(username=f"buyer-{secrets.token_hex(4)}")


def signed_in(user: User | None = None, **options: Any) -> Client:
    """Return a signed-in test client of this or a new customer."""
    client = Client(**options)
    client.force_login(user or a_customer())
    return client


def sign_in(client: Client, name: str = "wang", password: str = PASSWORD, **more: str) -> Any:
    """Send the form of the sign-in page and return the response."""
    form = {"username": name, "password": password, **more}
    return client.post("/accounts/sign-in/", form)


def staff_with(*permissions: str) -> Client:
    """Return the browser of staff with these permissions alone."""
    name = "-".join(permissions)[:150] or "none"
    user = User.objects.create(username=name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return signed_in(user)


def buy(client: Client, sale: Sale, quantity: object = 1, key: str = "k") -> Any:
    """Send the form of a purchase and return the response."""
    form = {"quantity": quantity, "idempotency_key": key}
    return client.post(f"/sales/{sale.slug}/buy/", form)


def hidden_fields(page: str) -> dict[str, str]:
    """Return the hidden fields of a page's forms."""
    found = re.findall(r'<input type="hidden" name="(\w+)"[^>]*? value="([^"]*)"', page)
    return {name: unescape(value) for name, value in found}


def fresh(sale: Sale) -> Sale:
    """Return the sale as a request would read it now."""
    return Sale.objects.select_related("stock", "product").get(pk=sale.pk)


def put_in_force(backend: str, strategy: str = "conditional", epoch: int = 1) -> None:
    """Set the policy row, without the drain of `policy.switch`."""
    LockPolicy.objects.update_or_create(
        pk=1,
        defaults={
            "backend": backend,
            "mode": strategy,
            "epoch": epoch,
            "state": LockPolicy.State.STEADY,
        },
    )
    policy.invalidate()
