"""Books, jobs, queued sales and counters, at most five seconds old."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from locking import metrics, single_flight
from locking.jobs.run_once import UNFINISHED
from locking.models import IdempotencyKey, JobRun
from shop.administration import alerts
from shop.administration.audit import StockAudit
from shop.errors import ServiceUnavailable
from shop.models import RejectedReservation
from shop.reservations import store
from shop.reservations.reconciliation import sales_under_way

TTL = 4.5
STALE = 10.0
NEWEST = 8
JOBS_OF = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What became of one task's runs within JOBS_OF."""

    name: str
    runs: int
    failed: int
    unfinished: int
    turned_away: int
    """Copies of messages that did nothing."""
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queued sale that is under way."""

    sale: str
    backlog: int | None
    """Reservations whose order is not written yet; None where Redis is silent."""
    left: int | None
    """Pieces that may be reserved; None where Redis is silent or the sale is not loaded."""
    available: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Books, jobs and counters at `as_of`."""

    as_of: datetime
    books: tuple[datetime, list[StockAudit]] | None
    queues: list[Queue]
    rejected: list[RejectedReservation]
    tasks: list[Task]
    runs: list[JobRun]
    lookups: dict[str, dict[str, int]]
    keys: dict[str, int]
    """Sends of idempotency keys by what became of them, since the start."""
    newest_keys: list[IdempotencyKey]


def see_rest() -> Rest:
    """As anybody saw it at most five seconds ago."""
    return single_flight.get_or_build("ops:rest", _read_rest, ttl=TTL, stale=STALE)


def _read_rest() -> Rest:
    now = timezone.now()
    since = JobRun.objects.filter(scheduled_for__gt=now - JOBS_OF, scheduled_for__lte=now)
    tasks = (
        since.order_by("task")
        .values("task")
        .annotate(
            runs=Count("pk"),
            failed=Count("pk", filter=Q(state=JobRun.State.FAILED)),
            unfinished=Count("pk", filter=Q(state__in=UNFINISHED)),
            turned_away=Sum("duplicates"),
            last=Max("scheduled_for"),
        )
    )
    totals = metrics.totals()
    sends = totals.get("locking_idempotency_total", {})
    return Rest(
        as_of=now,
        books=alerts.books(),
        queues=_queues(),
        rejected=list(RejectedReservation.objects.select_related("sale")[:NEWEST]),
        tasks=[Task(name=one.pop("task"), **one) for one in tasks],
        runs=list(since[:NEWEST]),
        lookups=metrics.lookups(totals),
        keys={outcome: int(value) for (outcome,), value in sorted(sends.items())},
        newest_keys=list(IdempotencyKey.objects.defer("headers", "body")[:NEWEST]),
    )


def _queues() -> list[Queue]:
    """Backlog and rest of each queued sale; its drift is in the books."""
    found, is_up = [], True
    for sale in sales_under_way().annotate(refused=Count("rejected")):
        backlog = left = None
        try:
            if is_up:
                backlog, left = store.backlog(sale=sale), store.left(sale=sale)
        except ServiceUnavailable:
            is_up = False  # one bounded wait is enough
        found.append(
            Queue(
                sale=sale.slug,
                backlog=backlog,
                left=left,
                available=sale.stock.quantity,
                rejected=sale.refused,
            )
        )
    return found
