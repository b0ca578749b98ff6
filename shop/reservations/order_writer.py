"""Write the orders of reservations: a batch in one transaction under the sale's lock.

An entry leaves the stream only after its order, or its rejection, is committed. It may therefore be
read twice; its number identifies it. If the database refuses a batch, its entries are written one
by one, so that those that cause it do not delay the others. An entry is rejected only for a known
reason, or if it fails again after the database has accepted a later one: while the schema or the
grants refuse all orders, all entries stay in the stream.
"""

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice

from django.conf import settings
from django.db import DatabaseError, IntegrityError, OperationalError, connection
from django.utils import timezone

from inventory.exceptions import OutcomeUnknown, OutOfStock, StaleFence
from locking import Lease, lock
from locking.failpoints import reach
from shop.errors import LimitReached
from shop.models import CustomerQuota, RejectedReservation, Sale, User
from shop.platform.metrics import ORDERS
from shop.reservations import store
from shop.reservations.reconciliation import decided_in, reconcile
from shop.reservations.store import Entry
from shop.sales.purchase_request import NewOrder, withdrawal_of
from shop.sales.stock_lock import learn_newer_fence, lock_name, use_of, withdraw

logger = logging.getLogger("shop")

BATCH = 500
"""Entries in one transaction."""
BATCH_LOCK_TIMEOUT = 5.0
"""Seconds for which a batch waits for the sale's lock."""
MAX_FAILURES = 30
"""Transactions of a batch that the database may refuse before the rest waits for the next batch."""

Reason = RejectedReservation.Reason
Outcomes = list[tuple[Entry, str]]


def write(*, sale: Sale) -> int:
    """Decide the oldest entries of a sale and remove them from its stream; return their number.

    Undecided entries stay in the stream. Raises LockError, DatabaseError and ServiceUnavailable.
    """
    for attempt in reversed(range(settings.MAX_ATTEMPTS)):
        try:
            with lock(lock_name(sale.pk), timeout=BATCH_LOCK_TIMEOUT) as lease:
                entries = list(islice(store.entries(sale=sale), BATCH))
                outcomes = _decide(sale, entries, lease, is_last=not attempt)
                reach("queued.committed")
                settled = store.settle(sale=sale, outcomes=outcomes)
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


def _decide(sale: Sale, entries: Sequence[Entry], lease: Lease, *, is_last: bool) -> Outcomes:
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
        if not is_last or isinstance(error, OutcomeUnknown | StaleFence):
            raise
        logger.warning("Batch of sale %s refused: %s", sale.slug, error)
    except (OutOfStock, LimitReached, DatabaseError) as error:
        logger.info("Batch of sale %s refused: %s", sale.slug, error)
    # Staff may have raised the limit since the consumer read the sale.
    sale.refresh_from_db(fields=["limit_per_customer"])
    return outcomes + _write_apart(sale, fresh, lease)


def _write_apart(sale: Sale, entries: Sequence[Entry], lease: Lease) -> Outcomes:
    """Write or reject the entries of a refused batch; return the outcomes of those it decided."""
    customers = User.objects.filter(pk__in=[one.customer_id for one in entries])
    known = set(customers.values_list("pk", flat=True))
    outcomes, waiting, failures, last = list[tuple[Entry, str]](), deque(entries), 0, None
    failed, suspects = list[Entry](), set[Entry]()
    while waiting and failures < MAX_FAILURES:
        entry, reason, detail = waiting.popleft(), Reason.FAILED, "The customer is gone"
        try:
            if entry.customer_id in known:
                _commit(sale, [entry], lease)
                outcomes.append((entry, "won"))
                # The database accepts orders: what failed before is tried once more.
                waiting.extend(one for one in failed if one not in suspects)
                suspects.update(failed)
                continue
        except OutcomeUnknown:
            raise  # the write may still come: under this lease no other may follow
        except (OutOfStock, LimitReached) as error:
            reason = Reason.SOLD_OUT if isinstance(error, OutOfStock) else Reason.LIMIT
            detail = ""
        except DatabaseError as error:
            failures, last, detail = failures + 1, error, repr(error)
            _reconnect()
            if entry not in suspects or isinstance(error, OperationalError):
                failed.append(entry)
                continue
        outcomes.append(_reject(sale, entry, reason, detail))
    if kept := len(entries) - len(outcomes):
        logger.error("%d reservations of sale %s cannot be written: %r", kept, sale.slug, last)
    return outcomes


def _reject(sale: Sale, entry: Entry, reason: Reason, detail: str) -> tuple[Entry, str]:
    """Reject an entry unless a COMMIT whose reply was lost decided it; return the outcome."""
    if decided := decided_in(sale=sale, numbers=[entry.number]):
        return entry, decided[entry.number].outcome
    if reason == Reason.FAILED:
        logger.error("Reservation rejected: %s (%s)", entry, detail)
    rejected, _ = RejectedReservation.objects.get_or_create(
        number=entry.number,
        defaults={
            "sale": sale,
            "customer_id": entry.customer_id,
            "quantity": entry.quantity,
            "reason": reason,
            "detail": detail,
        },
    )
    return entry, rejected.reason


def _commit(sale: Sale, entries: Sequence[Entry], lease: Lease) -> None:
    """Write the orders of entries in one transaction."""
    orders = [NewOrder(*entry[1:]) for entry in entries]
    known = CustomerQuota.objects.filter(
        sale=sale, customer_id__in=[one.customer_id for one in orders]
    )
    with_quota = set(known.values_list("customer_id", flat=True))
    use, now = use_of(lease), timezone.now()
    sold = withdrawal_of(orders, sale=sale, placed_at=now, with_quota=with_quota, lock=use)
    withdraw(lease, [sold], stock_id=sale.stock_id)
    ORDERS.inc(len(entries))
