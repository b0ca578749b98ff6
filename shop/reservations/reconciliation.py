"""Load a queued sale's state from the ledger into Redis, compare the two and repair Redis.

All of this happens under the sale's lock, so that no order is written meanwhile. Reservations go
on: they change nothing that mirrors the database. If the lock has two holders, the result may be
wrong by what the other one writes. The stock row then refuses the excess, and the next comparison
repairs Redis.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.db.models import QuerySet
from django.utils import timezone

from locking import lock
from locking.failpoints import reach
from shop.errors import Overloaded, ServiceUnavailable, refusing_lock_errors
from shop.models import CustomerQuota, Order, RejectedReservation, Sale
from shop.reservations import store
from shop.reservations.store import Entry
from shop.sales.purchase_request import unpaid
from shop.sales.stock_lock import lock_name, sale_lock
from shop.sales.waiting_slots import waiting_slot

logger = logging.getLogger("shop")

AHEAD = timedelta(minutes=1)
"""Time before its opening at which a sale is loaded."""
AFTER = timedelta(days=1)
"""Time after its end for which a sale's state is kept: orders may still be written or closed."""


class Decision(NamedTuple):
    """An order or a rejected reservation in the database."""

    quantity: int
    outcome: str


Decided = dict[str, Decision]


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
        return self != Repair(sale=self.sale)


def sales_under_way() -> QuerySet[Sale]:
    """Return the queued sales whose state must be in Redis."""
    now = timezone.now()
    return Sale.objects.filter(
        fulfilment=Sale.Fulfilment.QUEUED, opens_at__lte=now + AHEAD, closes_at__gt=now - AFTER
    ).select_related("stock")


@refusing_lock_errors()
def load(*, sale: Sale) -> None:
    """Load the sale's state into Redis unless it is there; refresh the generation of `sale`.

    Raises Overloaded and ServiceUnavailable.
    """
    with waiting_slot(sale_id=sale.pk), sale_lock(sale):
        _load(sale)


def _load(sale: Sale) -> None:
    """Replace the current generation if it is lost; without a lock, another process may do so."""
    own = copy(sale)  # the threads of a process share a cached sale
    own.refresh_from_db(fields=["generation", "stock"])
    while store.read_state(sale=own) is None:
        _fill(own)
        own.refresh_from_db(fields=["generation", "stock"])
    sale.generation = own.generation


def _fill(sale: Sale) -> None:
    """Replace the sale's generation, unless another process does; keep its unwritten entries.

    The row names the new generation once it is complete: a load that is interrupted changes
    nothing.
    """
    old = copy(sale)
    sale.generation = 1 + secrets.randbelow(2**31 - 1)
    try:
        ledger = _read_ledger(sale)
        store.create(sale=sale)
        _mirror(sale, *ledger)
        store.close(sale=old)
        for entry in store.entries(sale=old):
            if store.reserve(sale=sale, entry=entry, limit=None) == "not_loaded":
                raise ServiceUnavailable  # it would not count what was moved before
        store.set_stock(sale=sale, quantity=sale.stock.quantity)
    except ServiceUnavailable:
        with suppress(ServiceUnavailable):
            store.delete(sale=sale)
        raise
    reach("queued.filled")
    current = Sale.objects.filter(pk=sale.pk, generation=old.generation)
    is_named = current.update(generation=sale.generation)
    store.delete(sale=old if is_named else sale)


def _read_ledger(sale: Sale) -> tuple[Decided, dict[str, str]]:
    """Return the outcomes and the units by customer as of the quantity that `sale.stock` then has.

    Repeat the reads if a COMMIT without a reply, which the lock does not stop, arrives meanwhile.
    """
    quotas = CustomerQuota.objects.filter(sale=sale)
    while True:
        quantity = sale.stock.quantity
        decided = decided_in(sale=sale)
        blocked = set(unpaid(quotas, sale_id=sale.pk).values_list("customer_id", flat=True))
        taken = {
            str(customer): str(units + store.BLOCKED * (customer in blocked))
            for customer, units in quotas.values_list("customer_id", "taken")
        }
        sale.refresh_from_db(fields=["stock"])
        if sale.stock.quantity == quantity:
            return decided, taken


def _mirror(sale: Sale, decided: Decided, taken: dict[str, str]) -> int:
    """Copy outcomes and units by customer to Redis; return how many customers were wrong."""
    keys = store.keys_of(sale)
    outcomes = {number: f"{one.quantity} {one.outcome}" for number, one in decided.items()}
    store.mirror(sale=sale, key=keys.outcomes, rows=outcomes)
    return store.mirror(sale=sale, key=keys.taken, rows=taken)


def decided_in(*, sale: Sale, numbers: Sequence[str] | None = None) -> Decided:
    """Return quantity and outcome by number, as the database decided; of all by default."""
    orders, others = Order.objects.filter(sale=sale), RejectedReservation.objects.filter(sale=sale)
    if numbers is not None:
        orders, others = orders.filter(number__in=numbers), others.filter(number__in=numbers)
    decided = {
        number: Decision(quantity, reason)
        for number, quantity, reason in others.values_list("number", "quantity", "reason")
    }
    for number, quantity, status in orders.order_by().values_list("number", "quantity", "status"):
        decided[number] = Decision(quantity, "won" if status in Order.LIVE else "returned")
    return decided


@refusing_lock_errors()
def reconcile(*, sale: Sale, thoroughly: bool = False) -> Repair:
    """Compare Redis with the database and repair Redis.

    The stock is compared first. Only if it differs, after a start of Redis, or `thoroughly`, all
    customers and reservations are compared too. Raises Overloaded and ServiceUnavailable.
    """
    was_loaded = sale.generation
    # No customer waits for this, so the backend's default timeout serves.
    with lock(lock_name(sale.pk)):
        repair = _reconcile(sale, thoroughly)
    if repair and was_loaded:
        logger.warning("Repaired sale %s in Redis: %s", sale.slug, repair)
    return repair


def _reconcile(sale: Sale, thoroughly: bool) -> Repair:
    sale.refresh_from_db(fields=["generation", "stock"])
    state = store.read_state(sale=sale)
    if state is None:
        is_current = sale.closes_at > timezone.now()
        if is_current:
            _load(sale)
        return Repair(sale=sale.slug, loaded=is_current)
    store.expire(sale=sale)
    agrees = (state.stock, state.run) == (sale.stock.quantity, store.run_id(sale=sale))
    return Repair(sale=sale.slug) if agrees and not thoroughly else _compare(sale)


def _compare(sale: Sale) -> Repair:
    """Compare all customers and reservations, and correct the units of the stock row."""
    entries = list(store.entries(sale=sale))
    decided, taken = _read_ledger(sale)
    written = [(one, decided[one.number].outcome) for one in entries if one.number in decided]
    store.settle(sale=sale, outcomes=written)
    customers = _mirror(sale, decided, taken)
    state, quantity = store.read_state(sale=sale), sale.stock.quantity
    store.set_stock(sale=sale, quantity=quantity)
    return Repair(
        sale=sale.slug,
        settled=len(written),
        drift=state.stock - quantity if state else 0,
        customers=customers,
        forgotten=_forget(sale, [one for one in entries if one.number not in decided]),
    )


def _forget(sale: Sale, entries: Sequence[Entry]) -> int:
    """Forget reservations without an entry, in a new generation; return how many there were.

    Reservations go on meanwhile: those after `entries` may be waiting or not.
    """
    waiting = store.waiting_numbers(sale=sale)
    known = {entry.number for entry in entries}
    newer = store.entries(sale=sale, after=entries[-1].id if entries else "")
    lost = waiting - known - {entry.number for entry in newer}
    if lost or known - waiting:
        store.close(sale=sale)
        _load(sale)
    return len(lost)


def reconcile_all(sales: Iterable[Sale] | None = None, *, thoroughly: bool = False) -> list[Repair]:
    """Reconcile these sales, by default all current ones; skip a sale whose lock is not free."""
    repairs = []
    for sale in sales_under_way() if sales is None else sales:
        try:
            repairs.append(reconcile(sale=sale, thoroughly=thoroughly))
        except Overloaded as error:
            logger.warning("Reconciling sale %s failed, retrying later: %s", sale.slug, error)
    return repairs
