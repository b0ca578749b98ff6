"""Load a queued sale's state from the ledger into Redis, compare the two and repair Redis.

All of this happens under the sale's lock, so that no order is written meanwhile:

    units to reserve  =  units in the stock row  -  units in the stream whose order is not written

If the lock has two holders, the result may be wrong by what the other one writes. The stock row
then refuses the excess, and the next comparison repairs Redis.
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
"""Time before its opening at which a sale is loaded."""
AFTER = timedelta(days=1)
"""Time after its end for which a sale's state is kept: orders may still be written or closed."""

Decided = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The result of a comparison; all zero if Redis and the database agreed."""

    sale: str
    loaded: bool = False
    settled: int = 0
    """Entries whose order was committed by a consumer that stopped before it settled them."""
    drift: int = 0
    """Units that Redis offered in excess (+) or withheld (-)."""
    customers: int = 0
    """Customers with a wrong number of units in Redis."""
    forgotten: int = 0
    """Reservations that lost their entry: their page offers to send the form again."""

    def __bool__(self) -> bool:
        """Return True if anything was repaired."""
        return bool(self.loaded or self.settled or self.drift or self.customers or self.forgotten)


def sales_under_way() -> QuerySet[Sale]:
    """Return the queued sales whose state must be in Redis."""
    now = timezone.now()
    return Sale.objects.filter(
        fulfilment=Sale.Fulfilment.QUEUED, opens_at__lte=now + AHEAD, closes_at__gt=now - AFTER
    ).select_related("stock")


def load(*, sale: Sale) -> None:
    """Load the sale's state into Redis unless it is there; refresh the generation of `sale`.

    Raises Overloaded and ServiceUnavailable.
    """
    try:
        with waiting_slot(sale_id=sale.pk), lock(lock_name(sale.pk), timeout=settings.LOCK_TIMEOUT):
            sale.refresh_from_db(fields=["generation"])
            if store.left(sale=sale) is None:
                _load(sale)
    except LockError as error:
        raise lock_refusal(error) from error


def _load(sale: Sale) -> None:
    """Write a new generation; what only the old one contained is lost."""
    rows = Sale.objects.filter(pk=sale.pk, generation=sale.generation)
    if not rows.update(generation=1 + secrets.randbelow(2**31 - 1)):
        return  # another process loads it without the lock
    sale.refresh_from_db(fields=["generation", "stock"])
    store.load(
        sale=sale,
        quantity=sale.stock.quantity,
        taken=_taken(sale),
        decided=decided_in(sale=sale),
        expires_at=_end_of(sale),
    )
    logger.info("Loaded sale %s into Redis as generation %d", sale.slug, sale.generation)


def _end_of(sale: Sale) -> float:
    return (max(sale.closes_at, timezone.now()) + 2 * AFTER).timestamp()


def _taken(sale: Sale) -> dict[int, int]:
    return dict(CustomerQuota.objects.filter(sale=sale).values_list("customer_id", "taken"))


def decided_in(*, sale: Sale, numbers: Iterable[str] | None = None) -> Decided:
    """Return quantity and outcome by number, as the database decided; of all by default."""
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
    """Compare Redis with the database and repair Redis.

    `thoroughly` includes all customers and reservations; so does the first comparison after a
    start of Redis, and any that finds a difference. Raises Overloaded and ServiceUnavailable.
    """
    was_loaded = bool(sale.generation)
    try:
        with lock(
            lock_name(sale.pk)
        ):  # no customer waits for this, so the backend's default timeout serves
            repair = _reconcile(sale, thoroughly)
    except LockError as error:
        raise lock_refusal(error) from error
    if repair and was_loaded:
        logger.warning("Repaired sale %s in Redis: %s", sale.slug, repair)
    return repair


def _reconcile(sale: Sale, thoroughly: bool) -> Repair:
    sale.refresh_from_db(fields=["generation", "stock"])
    if store.left(sale=sale) is None:
        if sale.closes_at > timezone.now():
            _load(sale)
        return Repair(sale=sale.slug, loaded=sale.closes_at > timezone.now())
    store.expire_at(sale=sale, until=_end_of(sale))  # staff may have extended the sale
    entries = store.entries(sale=sale)
    decided = decided_in(sale=sale, numbers=[entry.number for entry in entries])
    written = [(one, decided[one.number][1]) for one in entries if one.number in decided]
    store.settle(sale=sale, outcomes=written)
    thoroughly = thoroughly or not store.was_compared(sale=sale)
    quick = store.repair(sale=sale, quantity=sale.stock.quantity, taken=None)
    if quick is None:
        raise ServiceUnavailable  # Redis lost the state during the comparison
    customers = forgotten = 0
    if thoroughly or quick.left_before != quick.left:
        store.write_outcomes(sale=sale, decided=decided_in(sale=sale))
        found = store.repair(sale=sale, quantity=sale.stock.quantity, taken=_taken(sale))
        if found is None:
            raise ServiceUnavailable
        customers, forgotten = found.customers, found.reservations
    return Repair(
        sale=sale.slug,
        settled=len(written),
        drift=quick.left_before - quick.left,
        customers=customers,
        forgotten=forgotten,
    )


def reconcile_all(sales: Iterable[Sale] | None = None, *, thoroughly: bool = False) -> list[Repair]:
    """Reconcile these sales, by default all current ones; skip a sale whose lock is not free."""
    repairs = []
    for sale in sales_under_way() if sales is None else sales:
        try:
            repairs.append(reconcile(sale=sale, thoroughly=thoroughly))
        except Overloaded as error:
            logger.warning("Reconciling sale %s failed, retrying later: %s", sale.slug, error)
    return repairs
