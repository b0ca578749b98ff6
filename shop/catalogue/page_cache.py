"""The page cache: what all visitors of a public page share, read twice a second in all processes.

Admission and the purchase never use it. A change by staff is visible at once, through
`invalidate`; the stock is at most TTL old, or TTL + STALE while the database is slow or
unavailable, and the page shows its age.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from django.core.paginator import Page, Paginator
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

from inventory import queries as inventory
from inventory.models import Product
from locking import single_flight
from shop.errors import NotFound
from shop.models import Sale
from shop.reservations.store import with_left
from shop.sales.queries import (
    catalogue,
    current_sales,
    get_product,
    get_sale,
    has_product,
    has_sale,
    past_sales,
)

TTL = 0.5
STALE = 300.0
"""Further seconds for which the stale value serves while one process reads again, or if the read
fails: the pages stay available while the database is not."""

NAMESPACES = ("sale", "home", "products", "product")
CURRENT = 24
"""Live sales on the home page, those that end first, and as many upcoming ones."""
PAST = 6
"""Past sales on the home page."""
PAGE = 12
"""Products on a page of the catalogue."""
CACHED_PAGES = frozenset(str(number) for number in range(1, 101))
"""Page numbers of the catalogue that are cached; later pages are read for each request."""
MAX_SLUG = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleSnapshot:
    """A sale as it was at `as_of`."""

    sale: Sale
    stocked: int
    """Units put on sale so far."""
    as_of: datetime


def get_cached_sale(*, slug: str) -> SaleSnapshot:
    """Return a sale from the page cache. Raise NotFound."""
    return _cached_row("sale", slug, has_sale, read_sale)


def read_sale(*, slug: str) -> SaleSnapshot:
    """Return a sale as it is now. Raise NotFound."""
    as_of = timezone.now()
    sale = with_left(get_sale(slug=slug))
    stocked = inventory.stocked(stock_id=sale.stock_id)
    return SaleSnapshot(sale=sale, stocked=stocked, as_of=as_of)


def get_cached_home() -> dict[str, list[Sale]]:
    """Return the cached sales of the home page by their phase now: live, upcoming and past."""
    sales, now = _cached("home:sales", _read_home), timezone.now()
    live = [sale for sale in sales if sale.opens_at <= now < sale.closes_at]
    return {
        "live": sorted(live, key=lambda sale: sale.closes_at),
        "upcoming": [sale for sale in sales if now < sale.opens_at],
        "past": [sale for sale in sales if sale.closes_at <= now][:PAST],
    }


def _read_home() -> list[Sale]:
    now = timezone.now()
    current = current_sales(now=now)
    live = current.filter(opens_at__lte=now).order_by("closes_at", "pk")[:CURRENT]
    upcoming = current.filter(opens_at__gt=now)[:CURRENT]
    return [*map(with_left, [*live, *upcoming]), *past_sales(now=now)[:PAST]]


def get_cached_product(*, slug: str) -> Product:
    """Return a cached product with its current sales. Raise NotFound."""
    return _cached_row("product", slug, has_product, get_product)


def get_cached_products(*, number: str, **choice: str) -> Page[Product]:
    """Return a page of the catalogue; a `choice` is not cached: the number of texts is unlimited.

    `choice` has the arguments of `catalogue`.
    """
    read = partial(_read_products, number, **choice)
    is_cached = not any(choice.values()) and number in CACHED_PAGES
    return _cached(f"products:{number}", read) if is_cached else read()


def _read_products(number: str, **choice: str) -> Page[Product]:
    page: Page[Any] = Paginator(catalogue(**choice), PAGE).get_page(number)
    page.object_list = list(page.object_list)
    page.paginator.object_list = range(page.paginator.count)  # pickled without the query
    return page


def _cached(key: str, read: Callable[[], T]) -> T:
    return single_flight.get_or_build(key, read, ttl=TTL, stale=STALE)


def _cached_row(namespace: str, slug: str, has: Callable[..., bool], read: Callable[..., T]) -> T:
    def read_or_none() -> T | None:
        try:
            return read(slug=slug)
        except NotFound:
            return None  # that the row does not exist is cached, too

    if len(slug) > MAX_SLUG:
        raise NotFound
    row = single_flight.get_or_build(
        f"{namespace}:{slug}", read_or_none, ttl=TTL, stale=STALE, exists=partial(has, slug=slug)
    )
    if row is None:
        raise NotFound
    return row


def invalidate(**signal: Any) -> None:
    """Invalidate all pages after the current transaction commits."""
    transaction.on_commit(partial(single_flight.invalidate, *NAMESPACES))


def connect_invalidation() -> None:
    """Invalidate the pages when staff saves or deletes a row that they show.

    Stock is written without the ORM and sends no signal; a restock calls `invalidate` itself.
    """
    for model in (Product, Sale):
        for signal in (post_save, post_delete):
            signal.connect(invalidate, sender=model, dispatch_uid="shop.catalogue.page_cache")
