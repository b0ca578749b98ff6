"""A queued sale's state in Redis is filled from the ledger, compared with it and put right.

Whoever does so holds the sale's lock, so that no order is being written meanwhile:

    may be reserved  =  pieces in the stock row  -  pieces in the stream whose order is not written

A lock that lies makes that wrong by what was written meanwhile; the stock row refuses what it does
not have, and the next comparison puts Redis right.
"""

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from locking import LockError, lock
from shop.errors import Overloaded, ServiceUnavailable, lock_refusal
from shop.models import CustomerQuota, Order, RejectedReservation, Sale
from shop.reservations import store
from shop.sales.stock_lock import lock_name
from shop.sales.waiting_slots import waiting_slot

logger = logging.getLogger("shop")

AHEAD = timedelta(minutes=1)
"""How long before its opening a sale is loaded."""
AFTER = timedelta(days=1)
"""How long after its end a sale's state is kept: orders may still be written or given back."""

Decided = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a comparison found; all zero when Redis and the database agreed."""

    sale: str
    loaded: bool = False
    settled: int = 0
    """Entries whose order had been written by somebody who then died."""
    drift: int = 0
    """Pieces that Redis offered too many (+) or too few (-)."""
    customers: int = 0
    """Customers of whom Redis knew a wrong number of pieces."""
    forgotten: int = 0
    """Reservations that lost their entry: their buyers are told to send the form again."""

    def __bool__(self) -> bool:
        """Whether anything was repaired."""
        return bool(self.loaded or self.settled or self.drift or self.customers or self.forgotten)


def sales_under_way() -> QuerySet[Sale]:
    """Queued sales whose state has to be in Redis."""
    now = timezone.now()
    return Sale.objects.filter(
        fulfilment=Sale.Fulfilment.QUEUED, opens_at__lte=now + AHEAD, closes_at__gt=now - AFTER
    ).select_related("stock")


def load(*, sale: Sale) -> None:
    """See to it that the sale's state is in Redis; `sale` then knows its generation.

    By one process at a time. Raises Overloaded, ServiceUnavailable.
    """
    try:
        with waiting_slot(sale_id=sale.pk), lock(lock_name(sale.pk), timeout=settings.LOCK_TIMEOUT):
            sale.refresh_from_db(fields=["generation"])
            if store.left(sale=sale) is None:
                _load(sale)
    except LockError as error:
        raise lock_refusal(error) from error


def _load(sale: Sale) -> None:
    """Fill a new generation. What the old one still had is gone with it."""
    rows = Sale.objects.filter(pk=sale.pk, generation=sale.generation)
    if not rows.update(generation=1 + secrets.randbelow(2**31 - 1)):
        return  # somebody does it without the lock: ask again
    sale.refresh_from_db(fields=["generation", "stock"])
    store.load(
        sale=sale,
        quantity=sale.stock.quantity,
        taken=_taken(sale),
        decided=decided_in(sale=sale),
        expires_at=_end_of(sale),
    )
    logger.info("sale %s is loaded into Redis as generation %d", sale.slug, sale.generation)


def _end_of(sale: Sale) -> float:
    return (max(sale.closes_at, timezone.now()) + 2 * AFTER).timestamp()


def _taken(sale: Sale) -> dict[int, int]:
    return dict(CustomerQuota.objects.filter(sale=sale).values_list("customer_id", "taken"))


def decided_in(*, sale: Sale, numbers: Iterable[str] | None = None) -> Decided:
    """Quantity and outcome of each number that the database has decided; of all by default."""
    orders, others = Order.objects.filter(sale=sale), RejectedReservation.objects.filter(sale=sale)
    if numbers is None:
        return _decided(orders, others)
    decided: Decided = {}
    for some in store.in_chunks(numbers):
        decided |= _decided(orders.filter(number__in=some), others.filter(number__in=some))
    return decided


def _decided(orders: QuerySet[Order], others: QuerySet[RejectedReservation]) -> Decided:
    refused = others.values_list("number", "quantity", "reason")
    decided = {number: (quantity, reason) for number, quantity, reason in refused}
    won = orders.values_list("number", "quantity")
    return decided | {number: (quantity, "won") for number, quantity in won}


def reconcile(*, sale: Sale, thoroughly: bool = False) -> Repair:
    """Compare Redis with the database and put Redis right.

    Thoroughly also goes through all customers and tickets; so does the first comparison after
    Redis was started, and any that finds a difference. Raises Overloaded, ServiceUnavailable.
    """
    was_loaded = bool(sale.generation)
    try:
        with lock(lock_name(sale.pk)):  # no buyer waits for it: as long as the backend says
            repair = _reconcile(sale, thoroughly)
    except LockError as error:
        raise lock_refusal(error) from error
    if repair and was_loaded:
        logger.warning("sale %s was put right in Redis: %s", sale.slug, repair)
    return repair


def _reconcile(sale: Sale, thoroughly: bool) -> Repair:
    sale.refresh_from_db(fields=["generation", "stock"])
    if store.left(sale=sale) is None:
        if sale.closes_at > timezone.now():
            _load(sale)
        return Repair(sale=sale.slug, loaded=sale.closes_at > timezone.now())
    store.keep(sale=sale, until=_end_of(sale))  # staff may have prolonged it
    entries = store.entries(sale=sale)
    decided = decided_in(sale=sale, numbers=[entry.number for entry in entries])
    written = [(one, decided[one.number][1]) for one in entries if one.number in decided]
    store.settle(sale=sale, outcomes=written)
    thoroughly = thoroughly or not store.was_compared(sale=sale)
    quick = store.recount(sale=sale, quantity=sale.stock.quantity, taken=None)
    if quick is None:
        raise ServiceUnavailable  # emptied at this moment
    customers = forgotten = 0
    if thoroughly or quick.left_before != quick.left:
        store.tell(sale=sale, decided=decided_in(sale=sale))
        found = store.recount(sale=sale, quantity=sale.stock.quantity, taken=_taken(sale))
        if found is None:
            raise ServiceUnavailable
        customers, forgotten = found.customers, found.tickets
    return Repair(
        sale=sale.slug,
        settled=len(written),
        drift=quick.left_before - quick.left,
        customers=customers,
        forgotten=forgotten,
    )


def reconcile_all(sales: Iterable[Sale] | None = None, *, thoroughly: bool = False) -> list[Repair]:
    """These, or every queued sale that is under way; one that is busy is left for the next time."""
    repairs = []
    for sale in sales_under_way() if sales is None else sales:
        try:
            repairs.append(reconcile(sale=sale, thoroughly=thoroughly))
        except Overloaded as error:
            logger.warning("sale %s is compared the next time: %s", sale.slug, error)
    return repairs
