"""What all viewers of a page share, read once a second however many they are.

Admission and the purchase never look here. What staff change is seen at once, by
`forget`; the stock is at most TTL old, or TTL + STALE while the database is slow or away, and says
so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from django.core.paginator import Page, Paginator
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

from inventory import queries as inventory
from inventory.models import Product, StockMovement
from locking import single_flight
from shop.errors import NotFound
from shop.models import Sale
from shop.sales.queries import (
    catalogue,
    current_sales,
    get_product,
    get_sale,
    has_product,
    has_sale,
    past_sales,
)

TTL = 1.0
STALE = 300.0
"""Seconds beyond, for which the pages go on while somebody reads anew, or when that fails: the shop
is looked at while its database is away."""
STOCKED_TTL = 60.0
"""How many pieces there ever were is a sum over the ledger, and changes by staff's hands alone."""

FAMILIES = ("sale", "stocked", "home", "products", "product")
PAST = 6
PAGE = 12
KEPT_PAGES = frozenset(str(number) for number in range(1, 101))
"""Of the catalogue; whoever turns further reads for himself."""
MAX_SLUG = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A sale as it was at `as_of`."""

    sale: Sale
    stocked: int
    """Pieces ever set aside for it."""
    as_of: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """The sales of the home page."""

    live: list[Sale]
    upcoming: list[Sale]
    past: list[Sale]


def see_sale(*, slug: str) -> Seen:
    """A sale as everybody sees it; NotFound when there is none."""
    return _share_row("sale", slug, has_sale, read_sale)


def read_sale(*, slug: str) -> Seen:
    """A sale as it is now; NotFound when there is none."""
    as_of = timezone.now()
    sale = get_sale(slug=slug)
    count = partial(inventory.stocked, stock_id=sale.stock_id)
    stocked = single_flight.get_or_build(
        f"stocked:{sale.stock_id}", count, ttl=STOCKED_TTL, stale=STALE
    )
    # Restocked a moment ago, perhaps: never more left than there were.
    return Seen(sale=sale, stocked=max(stocked, sale.left), as_of=as_of)


def see_home() -> Lists:
    """Sales by where they stand now: the clock moves on while the list is kept."""
    sales, now = _share("home:sales", _read_home), timezone.now()
    live = [sale for sale in sales if sale.opens_at <= now < sale.closes_at]
    return Lists(
        live=sorted(live, key=lambda sale: sale.closes_at),
        upcoming=[sale for sale in sales if now < sale.opens_at],
        past=[sale for sale in sales if sale.closes_at <= now][:PAST],
    )


def _read_home() -> list[Sale]:
    now = timezone.now()
    return [*current_sales(now=now), *past_sales(now=now)[:PAST]]


def see_product(*, slug: str) -> Product:
    """A product and its current sales; NotFound when there is none."""
    return _share_row("product", slug, has_product, get_product)


def see_products(*, text: str, number: str) -> Page[Product]:
    """A page of the catalogue. Whoever searches reads for himself: texts are without number."""
    read = partial(_read_products, text, number)
    is_kept = not text and number in KEPT_PAGES
    count, number_there_is, products = _share(f"products:{number}", read) if is_kept else read()
    page: Page[Any] = Paginator(range(count), PAGE).page(number_there_is)
    page.object_list = products
    return page


def _read_products(text: str, number: str) -> tuple[int, int, Sequence[Product]]:
    page = Paginator(catalogue(text=text), PAGE).get_page(number)
    return page.paginator.count, page.number, list(page.object_list)


def _share(key: str, read: Callable[[], T]) -> T:
    return single_flight.get_or_build(key, read, ttl=TTL, stale=STALE)


def _share_row(family: str, slug: str, has: Callable[..., bool], read: Callable[..., T]) -> T:
    def read_or_none() -> T | None:
        try:
            return read(slug=slug)
        except NotFound:
            return None  # that there is nothing is worth keeping, too

    if len(slug) > MAX_SLUG:
        raise NotFound
    row = single_flight.get_or_build(
        f"{family}:{slug}", read_or_none, ttl=TTL, stale=STALE, exists=partial(has, slug=slug)
    )
    if row is None:
        raise NotFound
    return row


def forget(**signal: Any) -> None:
    """After the commit, nobody is shown what was true before it."""
    transaction.on_commit(partial(single_flight.invalidate, *FAMILIES))


def forget_what_staff_change() -> None:
    """A purchase writes its movements without the ORM: it is no such change."""
    for model in (Product, Sale, StockMovement):
        for signal in (post_save, post_delete):
            signal.connect(forget, sender=model, dispatch_uid="shop.catalogue.page_cache")
