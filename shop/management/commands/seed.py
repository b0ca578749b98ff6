"""`manage.py seed [--reset]`: the accounts, products and sales of the demonstration."""

from argparse import ArgumentParser
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Permission
from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone

from inventory import stock
from inventory.import_csv import import_products
from inventory.models import Product, Stock, StockMovement
from inventory.stock import execute
from locking.models import WriteStrategy
from shop.models import CustomerQuota, Order, Payment, RejectedReservation, Sale, User
from shop.platform.keys import digest
from shop.sales.queries import create_sale

CATALOGUE = Path(__file__).resolve().parents[2] / "catalogue.csv"


class Account(NamedTuple):
    """An account to sign in with."""

    username: str
    password: str
    role: str

    def __str__(self) -> str:
        return f"{self.username:<6} password {self.password}  {self.role}"


# One password, so that one slow hash serves all.
PASSWORD = settings.SEED_PASSWORD
DEMO_ACCOUNTS = [
    Account("li", PASSWORD, "buyer"),
    Account("wang", PASSWORD, "buyer"),
    Account("zhang", PASSWORD, "buyer"),
    Account("amy", PASSWORD, "staff: /ops/, /admin/ and /lab/"),
    Account("ben", PASSWORD, "staff, read-only: /ops/ and /admin/"),
]
STAFF = "amy"
READ_ONLY_STAFF = "ben"
READABLE_APPS = ("shop", "inventory", "locking")
"""The apps whose rows the read-only staff may read."""
GUESTS = 60
"""Customers without a password, who own the orders of the seeded sales."""


class Offer(NamedTuple):
    """A sale of the demonstration; times are relative to now."""

    product: str
    price: int
    quantity: int
    limit: int
    opens: timedelta
    closes: timedelta
    sold: int = 0
    """Units already bought, one per guest."""
    fulfilment: str = Sale.Fulfilment.DIRECT


_in = timedelta

OFFERS = [
    Offer("phone-x", 999, 100, 1, _in(minutes=-10), _in(hours=8), sold=37),
    Offer("headphones", 599, 50, 2, _in(hours=-1), _in(days=1), sold=12),
    Offer("teapot", 260, 30, 2, _in(hours=-3), _in(days=3), sold=4),
    Offer("sneakers", 349, 200, 3, _in(days=-1), _in(days=14), sold=55),
    Offer("kettle", 199, 40, 2, _in(minutes=-1), _in(days=30)),
    Offer("speaker", 149, 25, 1, _in(hours=-6), _in(days=7), sold=22),
    Offer("camera", 790, 20, 1, _in(minutes=1), _in(days=30)),
    Offer("bicycle", 1340, 10, 1, _in(hours=3), _in(days=30)),
    Offer("watch", 590, 40, 1, _in(days=1), _in(days=31)),
    Offer("tent", 495, 60, 2, _in(days=7), _in(days=37)),
    Offer("lamp", 99, 20, 1, _in(hours=-2), _in(days=30), sold=20),
    Offer("keyboard", 449, 50, 1, _in(days=-2), _in(days=-1), sold=43),
    Offer("guitar", 880, 500, 2, _in(hours=-1), _in(days=40), fulfilment=Sale.Fulfilment.QUEUED),
    Offer("plant", 69, 300, 1, _in(minutes=2), _in(days=40), fulfilment=Sale.Fulfilment.QUEUED),
]


class Command(BaseCommand):
    """Add missing rows, or replace all with --reset. Print the accounts."""

    help = "Fill the shop with the demonstration's products, sales and accounts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add --reset."""
        parser.add_argument(
            "--reset",
            action="store_true",
            help="first delete every order, sale, stock row and product; accounts stay",
        )

    def handle(self, *, reset: bool, **options: object) -> None:
        """Seed in one transaction."""
        with transaction.atomic():
            if reset:
                _wipe()
            guests = _people()
            _catalogue()
            now = timezone.now()
            for offer in OFFERS:
                if not Sale.objects.filter(slug=offer.product).exists():
                    _offer(offer, now, guests)
        found = f"{Product.objects.count()} products, {Sale.objects.count()} sales."
        if not PASSWORD:
            self.stdout.write(f"{found} No account has a password: see `createsuperuser`.")
            return
        self.stdout.write(f"{found} Sign in as:")
        for account in DEMO_ACCOUNTS:
            self.stdout.write(f"  {account}")


def _wipe() -> None:
    for model in (
        RejectedReservation,
        Payment,
        Order,
        StockMovement,
        CustomerQuota,
        Sale,
        Stock,
        Product,
    ):
        model.objects.all().delete()


def _people() -> list[User]:
    """Create missing accounts and return the guests."""
    missing = _missing({account.username for account in DEMO_ACCOUNTS})
    hashed = make_password(PASSWORD or None) if missing else ""
    User.objects.bulk_create(
        User(
            username=name,
            password=hashed,
            is_staff=name in (STAFF, READ_ONLY_STAFF),
            is_superuser=name == STAFF,
        )
        for name in missing
    )
    if READ_ONLY_STAFF in missing:
        readable = Permission.objects.filter(
            codename__startswith="view_", content_type__app_label__in=READABLE_APPS
        )
        User.objects.get(username=READ_ONLY_STAFF).user_permissions.set(readable)
    names = {f"guest-{number:02}" for number in range(1, GUESTS + 1)}
    User.objects.bulk_create(
        User(username=name, password=make_password(None)) for name in _missing(names)
    )
    return list(User.objects.filter(username__in=names).order_by("username"))


def _missing(names: set[str]) -> list[str]:
    existing = User.objects.filter(username__in=names).values_list("username", flat=True)
    return sorted(names - set(existing))


def _catalogue() -> None:
    """Import the products, unless there are any already."""
    if not Product.objects.exclude(slug="lab-http").exists():  # `lab http` creates this one
        with CATALOGUE.open(encoding="utf-8", newline="") as lines:
            import_products(lines)


def _offer(offer: Offer, now: datetime, guests: list[User]) -> None:
    product = Product.objects.filter(slug=offer.product).first()
    if product is None:
        return
    sale = create_sale(
        product=product,
        slug=offer.product,
        price=Decimal(offer.price),
        quantity=offer.quantity,
        opens_at=now + offer.opens,
        closes_at=now + offer.closes,
        limit_per_customer=offer.limit,
        fulfilment=offer.fulfilment,
    )
    for guest in guests[: offer.sold]:
        _sell(sale, guest)
    # Seeded orders were placed while the sale was open, not now.
    Order.objects.filter(sale=sale).update(created_at=sale.opens_at)


def _sell(sale: Sale, guest: User) -> None:
    """Create a paid order with its ledger rows, without a lock: no customer buys yet."""
    order = Order.objects.create(
        customer=guest,
        sale=sale,
        quantity=1,
        unit_price=sale.price,
        status=Order.Status.PAID,
        key=digest(f"seed:{sale.slug}"),
        pay_by=sale.opens_at,
        closed_at=sale.opens_at,
    )
    CustomerQuota.objects.create(customer=guest, sale=sale, taken=1)
    reading = stock.read_stock(
        stock_id=sale.stock_id,
        strategy=WriteStrategy.CONDITIONAL,
        fence=stock.Fence(epoch=0, token=None),
    )
    execute(stock.reserve(reading=reading, orders=[(order.number, 1)]))
