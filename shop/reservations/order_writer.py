"""Write the orders of reservations: a batch in one transaction under the sale's lock.

An entry leaves the stream only after its order, or its rejection, is committed. It may therefore be
read twice; its number identifies it. If the database refuses a batch, its entries are written one
by one, so that one bad entry does not delay the others.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice

from django.conf import settings
from django.db import DatabaseError, IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory import stock
from inventory.exceptions import OutcomeUnknown, OutOfStock, StaleFence
from inventory.statements import Statement, insert_all
from locking import Lease, lock
from locking.failpoints import reach
from shop.errors import LimitReached
from shop.models import CustomerQuota, Order, RejectedReservation, Sale
from shop.platform.metrics import ORDERS
from shop.reservations import store
from shop.reservations.reconciliation import decided_in, reconcile
from shop.reservations.shards import Shard
from shop.reservations.store import Entry
from shop.sales.quota import take_quota
from shop.sales.stock_lock import commit_under, fence_of, learn_newer_fence, lock_name

logger = logging.getLogger("shop")

BATCH = 500
"""Entries in one transaction."""
BATCH_LOCK_TIMEOUT = 5.0
"""Seconds for which a batch waits for the sale's lock."""
MAX_FAILURES = 5
"""Failures that an entry caused, after which it is rejected."""

Reason = RejectedReservation.Reason
Outcomes = list[tuple[Entry, str]]


def write(*, sale: Sale, shard: Shard) -> int:
    """Decide the oldest entries of a shard and remove them from its stream; return their number.

    Undecided entries stay in the stream. Raises LockError, DatabaseError and ServiceUnavailable.
    """
    for attempt in reversed(range(settings.MAX_ATTEMPTS)):
        try:
            with lock(lock_name(sale.pk), timeout=BATCH_LOCK_TIMEOUT) as lease:
                entries = list(islice(store.entries(shard=shard), BATCH))
                outcomes = _decide(sale, shard, entries, lease, is_last=not attempt)
                reach("queued.committed")
                settled = store.settle(shard=shard, outcomes=outcomes)
                reach("queued.settled")
        except StaleFence:
            learn_newer_fence(sale)
        except (OperationalError, IntegrityError) as error:
            logger.warning("Writing a batch of sale %s failed, retrying: %s", sale.slug, error)
            _reconnect()
        else:
            is_wrong = any(one in (Reason.SOLD_OUT, Reason.FAILED) for _, one in outcomes)
            if is_wrong or settled < len(outcomes):
                reconcile(sale=sale)  # Redis offered too many units, or lost these entries
            return settled
    return 0


def _reconnect() -> None:
    connection.close_if_unusable_or_obsolete()
    connection.ensure_connection()


def _decide(
    sale: Sale, shard: Shard, entries: Sequence[Entry], lease: Lease, *, is_last: bool
) -> Outcomes:
    decided = decided_in(sale=sale, numbers=[entry.number for entry in entries])
    outcomes = [(one, decided[one.number].outcome) for one in entries if one.number in decided]
    fresh = [entry for entry in entries if entry.number not in decided]
    reach("queued.read")
    try:
        if fresh:
            _commit(sale, fresh, lease)
        return outcomes + [(entry, "won") for entry in fresh]
    except (StaleFence, OperationalError, IntegrityError) as error:
        # The next attempt finds the entries that another consumer has written.
        if not is_last or isinstance(error, OutcomeUnknown):
            raise
    except (OutOfStock, LimitReached, DatabaseError, ValueError) as error:
        logger.info("Batch of sale %s refused, writing its orders one by one: %s", sale.slug, error)
        # Staff may have raised the limit since the consumer read the sale.
        sale.refresh_from_db(fields=["limit_per_customer"])
    failed = 0
    for entry in fresh:
        outcome = _write_alone(sale, shard, entry, lease)
        if outcome is not None:
            outcomes.append((entry, outcome))
        failed = failed + 1 if outcome is None else 0
        if failed == settings.MAX_ATTEMPTS:
            break  # the entries are hardly the cause, and each attempt takes as long
    return outcomes


def _write_alone(sale: Sale, shard: Shard, entry: Entry, lease: Lease) -> str | None:
    """Return the outcome of an entry, or None if the database failed."""
    try:
        _commit(sale, [entry], lease)
    except OutOfStock:
        return _reject(sale, entry, Reason.SOLD_OUT)
    except LimitReached:
        return _reject(sale, entry, Reason.LIMIT)
    except OutcomeUnknown:
        raise  # the write may still come: under this lease no other may follow
    except OperationalError as error:
        _reconnect()
        is_hopeless = _count_failure(sale, shard, entry) >= MAX_FAILURES
        return _reject(sale, entry, Reason.FAILED, repr(error)) if is_hopeless else None
    except (DatabaseError, ValueError) as error:
        sent = Order.objects.filter(customer_id=entry.customer_id, key=entry.key)
        reason = Reason.KEY_REUSED if sent.exists() else Reason.FAILED
        return _reject(sale, entry, reason, repr(error))
    return "won"


def _count_failure(sale: Sale, shard: Shard, entry: Entry) -> int:
    """Return how often an entry failed although the database could write the stock row."""
    try:
        stock.check_writable(stock_id=sale.stock_id)
    except OperationalError:
        return 0
    return store.count_failure(shard=shard, entry=entry)


def _reject(sale: Sale, entry: Entry, reason: Reason, detail: str = "") -> str:
    """Reject an entry unless a COMMIT whose reply was lost decided it; return the outcome."""
    if decided := decided_in(sale=sale, numbers=[entry.number]):
        return decided[entry.number].outcome
    if reason == Reason.FAILED:
        logger.error("Reservation rejected: %s (%s)", entry, detail)
    rejected, _ = RejectedReservation.objects.get_or_create(
        number=entry.number,
        defaults={
            "sale": sale,
            "customer_id": entry.customer_id,
            "quantity": entry.quantity,
            "reason": reason,
            "detail": f"{detail} {entry.key if entry.customer_id is None else ''}".strip(),
        },
    )
    return rejected.reason


def _commit(sale: Sale, entries: Sequence[Entry], lease: Lease) -> None:
    """Write the entries in one transaction, with the contended stock row last but one."""
    reading = stock.read_stock(stock_id=sale.stock_id, strategy=lease.mode, fence=fence_of(lease))
    reach("queued.stock_read")
    now = timezone.now()
    commit_under(
        lease,
        [
            insert_all(
                Order,
                ("number", "customer_id", "quantity", "key"),
                [(one.number, one.customer_id, one.quantity, one.key) for one in entries],
                sale_id=sale.pk,
                unit_price=sale.price,
                status=Order.Status.PENDING,
                created_at=now,
                pay_by=now + timedelta(seconds=settings.PAY_WITHIN_SECONDS),
                closed_at=None,
            ),
            *_quotas(sale, entries),
            *stock.reserve(reading=reading, orders=[(one.number, one.quantity) for one in entries]),
        ],
    )
    ORDERS.inc(len(entries))


def _quotas(sale: Sale, entries: Sequence[Entry]) -> list[Statement]:
    wanted: Counter[int] = Counter()
    for entry in entries:
        if entry.customer_id is None:
            raise ValueError("An entry cannot be read.")
        wanted[entry.customer_id] += entry.quantity
    known = CustomerQuota.objects.filter(sale=sale, customer_id__in=list(wanted))
    statements = [
        take_quota(sale=sale, customer_id=customer, quantity=wanted.pop(customer))
        for customer in known.values_list("customer_id", flat=True)
    ]
    if any(units > sale.limit_per_customer for units in wanted.values()):
        raise LimitReached
    if wanted:
        new = ("customer_id", "taken"), list(wanted.items())
        statements.append(insert_all(CustomerQuota, *new, sale_id=sale.pk))
    return statements
