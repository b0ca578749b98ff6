"""Load a queued sale's state from the ledger into Redis, compare the two and repair Redis.

Each shard is loaded and compared on its own; only their shares of the stock are compared together.
All of this happens under the sale's lock, so that no order is written meanwhile. Reservations go
on: they change nothing that mirrors the database. If the lock has two holders, the result may be
wrong by what the other one writes. The stock row then refuses the excess, and the next comparison
repairs Redis.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from locking import lock
from locking.failpoints import reach
from shop.errors import BadInput, Overloaded, refusing_lock_errors
from shop.models import CustomerQuota, Order, RejectedReservation, Sale
from shop.platform.deadline import current_deadline
from shop.reservations import shares, store
from shop.reservations.shards import Shard, home_number, replaced, shards_of
from shop.reservations.store import Entry, State
from shop.sales.stock_lock import lock_name, sale_lock
from shop.sales.waiting_slots import waiting_slot

logger = logging.getLogger("shop")

AHEAD = timedelta(minutes=1)
"""Time before its opening at which a sale is loaded."""
AFTER = timedelta(days=1)
"""Time after its end for which a sale's state is kept: orders may still be written or closed."""
POLL = 0.02
"""Seconds between two looks at a generation that another process fills."""


class Decision(NamedTuple):
    """An order or a rejected reservation in the database."""

    quantity: int
    outcome: str
    customer_id: int | None


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
    unavailable: int = 0
    """Shards that were not compared, because they did not respond."""

    def __bool__(self) -> bool:
        """Return True if anything was repaired."""
        return replace(self, unavailable=0) != Repair(sale=self.sale)


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
    """Fill new generations of the shards that have none, or wait for a process that does.

    A shard that is unavailable is left out; ServiceUnavailable is raised if all are.
    """
    deadline = current_deadline()
    own = copy(sale)  # the threads of a process share a cached sale
    while True:
        own.refresh_from_db(fields=["generation", "stock"])
        states = store.read_states(sale=own)
        if missing := [shard for shard, state in states.items() if state is None]:
            _fill(own, missing[0])
        elif all(state and state.stock is not None for state in states.values()):
            sale.generation = own.generation
            return
        elif not deadline.left(settings.LOCK_TIMEOUT):
            raise Overloaded
        else:
            reach("queued.not_filled")
            time.sleep(POLL)


def _fill(sale: Sale, lost: Shard) -> None:
    """Replace the shard's generation, unless another process does; keep its unwritten entries."""
    shard = lost._replace(generation=1 + secrets.randbelow(2**31 - 1))
    store.create(shard=shard)
    if not _replace(sale, shard):
        return
    reach("queued.filling")
    _mirror(sale, shard, *_read_ledger(sale))
    old = lost._replace(generation=abs(lost.generation))
    store.delete(old, store.keys_of(old).state)  # accepts no reservation any more
    for entry in store.entries(shard=old):
        if entry.customer_id is not None:
            store.reserve(shard=shard, entry=entry, limit=None)
    store.set_stock(shard=shard, quantity=shares.first_share(sale=sale, shard=shard))
    store.expire_at(shard=shard, until=_end_of(sale))
    store.delete(old)
    shares.cover(sale=sale, shard=shard)
    logger.info("Loaded sale %s into Redis: %s", sale.slug, shard)


def _replace(sale: Sale, shard: Shard) -> bool:
    """Store the shard's new generation; return False if another process has stored one."""
    new = replaced(sale, shard)
    is_ours = Sale.objects.filter(pk=sale.pk, generation=sale.generation).update(generation=new)
    if is_ours:
        sale.generation = new
    return bool(is_ours)


def _read_ledger(sale: Sale) -> tuple[Decided, dict[str, str]]:
    """Return the outcomes and the units by customer as of the quantity that `sale.stock` then has.

    Repeat the reads if a COMMIT without a reply, which the lock does not stop, arrives meanwhile.
    """
    quotas = CustomerQuota.objects.filter(sale=sale).values_list("customer_id", "taken")
    while True:
        quantity = sale.stock.quantity
        decided = decided_in(sale=sale)
        taken = {str(customer): str(units) for customer, units in quotas.all()}
        sale.refresh_from_db(fields=["stock"])
        if sale.stock.quantity == quantity:
            return decided, taken


def _mirror(sale: Sale, shard: Shard, decided: Decided, taken: dict[str, str]) -> int:
    """Copy the outcomes and units of the shard's customers to it; return how many were wrong."""

    def is_home(customer_id: int | None) -> bool:
        return home_number(customer_id, shard.total) == shard.number

    keys = store.keys_of(shard)
    outcomes = {
        number: f"{one.quantity} {one.outcome}"
        for number, one in decided.items()
        if is_home(one.customer_id)
    }
    store.mirror(shard, keys.outcomes, outcomes)
    own = {customer: units for customer, units in taken.items() if is_home(int(customer))}
    return store.mirror(shard, keys.taken, own)


def _end_of(sale: Sale) -> float:
    # Added as numbers: a sale without an end may close on the last day of the calendar.
    return max(sale.closes_at, timezone.now()).timestamp() + 2 * AFTER.total_seconds()


def decided_in(*, sale: Sale, numbers: Sequence[str] | None = None) -> Decided:
    """Return quantity and outcome by number, as the database decided; of all by default."""
    orders, others = Order.objects.filter(sale=sale), RejectedReservation.objects.filter(sale=sale)
    if numbers is not None:
        orders, others = orders.filter(number__in=numbers), others.filter(number__in=numbers)
    columns = "number", "quantity", "customer_id"
    decided = {
        number: Decision(quantity, reason, customer)
        for number, quantity, customer, reason in others.values_list(*columns, "reason")
    }
    for number, quantity, customer, status in orders.values_list(*columns, "status"):
        outcome = "won" if status in Order.LIVE else "returned"
        decided[number] = Decision(quantity, outcome, customer)
    return decided


@refusing_lock_errors()
def reconcile(*, sale: Sale, thoroughly: bool = False) -> Repair:
    """Compare Redis with the database and repair Redis.

    The stock is compared first. Only if it differs, after a start of Redis, or `thoroughly`, all
    customers and reservations are compared too. A shard that is unavailable is left out. Raises
    Overloaded, and ServiceUnavailable if all shards are unavailable.
    """
    was_loaded = any(shard.generation for shard in shards_of(sale))
    # No customer waits for this, so the backend's default timeout serves.
    with lock(lock_name(sale.pk)):
        repair = _reconcile(sale, thoroughly)
    if repair and was_loaded:
        logger.warning("Repaired sale %s in Redis: %s", sale.slug, repair)
    return repair


def _reconcile(sale: Sale, thoroughly: bool) -> Repair:
    sale.refresh_from_db(fields=["generation", "stock"])
    found = store.read_states(sale=sale)
    states = store.loaded(found)
    unavailable = len(shards_of(sale)) - len(found)
    if len(states) < len(found):
        is_current = sale.closes_at > timezone.now()
        if is_current:
            _load(sale)
        return Repair(sale=sale.slug, loaded=is_current, unavailable=unavailable)
    for shard in states:
        store.expire_at(shard=shard, until=_end_of(sale))  # staff may have extended the sale
    agrees = not shares.drift(sale=sale, states=states) and all(
        state.run == store.run_id(shard.address) for shard, state in states.items()
    )
    if agrees and not thoroughly:
        return Repair(sale=sale.slug, unavailable=unavailable)
    return replace(_compare(sale, states), unavailable=unavailable)


def _compare(sale: Sale, states: dict[Shard, State]) -> Repair:
    """Compare all customers and reservations, and correct the shares of the stock."""
    entries = {shard: list(store.entries(shard=shard)) for shard in states}
    decided, taken = _read_ledger(sale)
    settled = customers = 0
    for shard, waiting in entries.items():
        written = [(one, decided[one.number].outcome) for one in waiting if one.number in decided]
        store.settle(shard=shard, outcomes=written)
        settled += len(written)
        customers += _mirror(sale, shard, decided, taken)
    return Repair(
        sale=sale.slug,
        settled=settled,
        drift=shares.correct(sale=sale, compared=states),
        customers=customers,
        forgotten=sum(
            _forget(sale, shard, [one for one in waiting if one.number not in decided])
            for shard, waiting in entries.items()
        ),
    )


def _forget(sale: Sale, shard: Shard, entries: Sequence[Entry]) -> int:
    """Forget reservations without an entry, in a new generation; return how many there were.

    Reservations go on meanwhile: those after `entries` may be waiting or not.
    """
    waiting = store.waiting_numbers(shard=shard)
    known = {entry.number for entry in entries if entry.customer_id is not None}
    newer = store.entries(shard=shard, after=entries[-1].id if entries else "")
    lost = waiting - known - {entry.number for entry in newer}
    if lost or known - waiting:
        store.delete(shard, store.keys_of(shard).state)  # accepts no reservation any more
        _load(sale)
    return len(lost)


@refusing_lock_errors()
def declare_lost(*, sale: Sale, number: int) -> int:
    """Give the share of an unavailable shard to the other ones; return its units.

    Its customers are refused until a server responds at its URL: a new and empty one, or the old
    one, whose entries are kept, and written if there are units left for them. Raises BadInput if
    the shard responds, Overloaded, and ServiceUnavailable if no shard responds.
    """
    with lock(lock_name(sale.pk)):
        sale.refresh_from_db(fields=["generation", "stock"])
        shard = shards_of(sale)[number]
        if shard in store.read_states(sale=sale):
            raise BadInput
        if shard.generation > 0:
            _replace(sale, shard._replace(generation=-shard.generation))
        return -shares.correct(sale=sale)


def reconcile_all(sales: Iterable[Sale] | None = None, *, thoroughly: bool = False) -> list[Repair]:
    """Reconcile these sales, by default all current ones; skip a sale whose lock is not free."""
    repairs = []
    for sale in sales_under_way() if sales is None else sales:
        try:
            repairs.append(reconcile(sale=sale, thoroughly=thoroughly))
        except Overloaded as error:
            logger.warning("Reconciling sale %s failed, retrying later: %s", sale.slug, error)
    return repairs
