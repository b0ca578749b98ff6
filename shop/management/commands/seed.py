"""`manage.py seed`: the accounts, products and sales of the demonstration.

The products are in shop/catalogue.csv, their sales in shop/sales.csv: `opens` and `closes` are ISO
8601 durations from the next full minute, as pages show hours and minutes, `sold` is the number of
units already bought, one by each guest. `room` is the mode of its waiting room, which admits
`inlet` people a minute.
"""

import csv
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Permission
from django.db import models, transaction
from django.utils import timezone

from inventory import stock
from inventory.management.console import HelpfulCommand
from inventory.messages import one_by_one
from inventory.models import Product, StockMovement, WriteStrategy
from shop.models import Order, Payment, Sale, User, digest, new_order_number
from shop.sales.purchase_request import NewOrder, withdrawal_of
from shop.sales.queries import create_sale

CATALOGUE = settings.BASE_DIR / "shop/catalogue.csv"
SALES = settings.BASE_DIR / "shop/sales.csv"


PASSWORD = settings.SEED_PASSWORD
"""One for all accounts, so that one slow hash serves all."""
DEMO_ACCOUNTS = {
    "li": "buyer",
    "wang": "buyer",
    "zhang": "buyer",
    "amy": "staff: /ops/, /admin/ and /lab/",
    "ben": "staff, read-only: /ops/ and /admin/",
}
SUPERUSER = "amy"
READ_ONLY_STAFF = "ben"
READABLE_APPS = ("shop", "mail", "inventory", "locking", "waiting_room")
"""The apps whose rows the read-only staff may read."""
GUESTS = [f"guest-{number:02}" for number in range(1, 61)]
"""Customers without a password, who own the orders of the seeded sales."""
PAUSE = timedelta(seconds=20)
"""Time between two seeded orders of a sale."""


class Command(HelpfulCommand):
    """Add missing rows, and print the accounts."""

    help = "Add the demo's products, sales and accounts."

    def handle(self, **options: object) -> None:
        """Seed in one transaction."""
        with transaction.atomic():
            guests = _people()
            now = timezone.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
            # Other than those of `lab http` and `lab-traffic`.
            if not Product.objects.exclude(slug__startswith="lab-").exists():
                Product.objects.bulk_create(Product(**row) for row in _read(CATALOGUE))
            _write([one for row in _read(SALES) for one in _offer(row, now, guests)])
        found = f"{Product.objects.count()} products, {Sale.objects.count()} sales."
        if not PASSWORD:
            self.stdout.write(f"{found} No account has a password: see `createsuperuser`.")
            return
        self.stdout.write("\n".join([f"{found} Sign in as:", *account_lines()]))


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def account_lines() -> list[str]:
    """Return name, password and role of each account, a line for each."""
    return [f"  {name:<6} password {PASSWORD}  {role}" for name, role in DEMO_ACCOUNTS.items()]


def _people() -> list[User]:
    """Create missing accounts and return the guests."""
    hashed = make_password(PASSWORD or None)
    accounts = [
        User(
            username=name,
            email=f"{name}@example.com",
            password=hashed,
            is_staff=role.startswith("staff"),
            is_superuser=name == SUPERUSER,
        )
        for name, role in DEMO_ACCOUNTS.items()
    ]
    guests = [User(username=name, password=make_password(None)) for name in GUESTS]
    User.objects.bulk_create([*accounts, *guests], ignore_conflicts=True)
    permissions = User.objects.get(username=READ_ONLY_STAFF).user_permissions
    if not permissions.exists():
        readable = Permission.objects.filter(codename__startswith="view_")
        permissions.set(readable.filter(content_type__app_label__in=READABLE_APPS))
    return list(User.objects.filter(username__in=GUESTS).order_by("username"))


def _offer(row: dict[str, str], now: datetime, guests: list[User]) -> list[Payment]:
    """Create a sale and its orders, unless it exists or its product was deleted.

    Return the payments, which are not written yet.
    """
    product = Product.objects.filter(slug=row["product"]).first()
    if product is None or Sale.objects.filter(slug=product.slug).exists():
        return []
    to_duration = models.DurationField().to_python
    sale = create_sale(
        product=product,
        slug=product.slug,
        price=Decimal(row["price"]),
        quantity=int(row["quantity"]),
        opens_at=now + to_duration(row["opens"]),
        closes_at=now + to_duration(row["closes"]),
        limit_per_customer=int(row["limit"]),
        fulfilment=row["fulfilment"],
    )
    if row["room"] and apps.is_installed("waiting_room"):
        apps.get_app_config("waiting_room").seed(  # type: ignore[attr-defined]
            sale=sale, mode=row["room"], inlet=int(row["inlet"])
        )
    return _sell(sale, guests[: int(row["sold"])])


def _write(payments: list[Payment]) -> None:
    payments.sort(key=lambda payment: payment.answer_by)  # lists show them by number
    Payment.objects.bulk_create(payments)
    for payment in payments:
        payment.created_at = payment.answer_by
    Payment.objects.bulk_update(payments, ["created_at"])


def _sell(sale: Sale, guests: list[User]) -> list[Payment]:
    """Create paid orders with their ledger rows, without a lock: no customer buys yet."""
    if not guests:
        return []
    key = digest(f"seed:{sale.slug}")
    new = [NewOrder(new_order_number(), guest.pk, 1, key) for guest in guests]
    sold = withdrawal_of(new, sale=sale, placed_at=sale.opens_at, with_quota=())
    reading = stock.claim_stock(
        stock_id=sale.stock_id,
        strategy=WriteStrategy.CONDITIONAL,
        fence=stock.Fence(epoch=0, token=None),
    )
    one_by_one([*sold.statements, *stock.reserve(reading=reading, orders=sold.orders)])
    # They were placed one after the other since the opening, not now.
    placed_at: dict[str | None, datetime] = {}
    orders, now = list(sale.orders.order_by("pk")), timezone.now()
    for n, order in enumerate(orders, 1):
        order.status = Order.Status.PAID
        order.created_at = order.closed_at = min(now, sale.opens_at + n * PAUSE)
        placed_at[order.number] = order.created_at
    lines = list(StockMovement.objects.filter(stock=sale.stock_id))
    for line in lines:
        line.created_at = placed_at.get(line.order_number, sale.opens_at)
    Order.objects.bulk_update(orders, ["status", "created_at", "closed_at"])
    paid = {"amount": sale.price, "status": Payment.Status.APPROVED}
    if settings.PAYMENT_PROVIDER == "simulated":  # else they were paid outside
        paid["provider_id"] = "seed"
    StockMovement.objects.bulk_update(lines, ["created_at"])
    return [
        Payment(order=one, answer_by=one.created_at, closed_at=one.closed_at, **paid)
        for one in orders
    ]
