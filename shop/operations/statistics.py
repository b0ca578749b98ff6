"""Stock audit, jobs, queued sales and counters, at most five seconds old."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from locking import metrics, single_flight
from locking.jobs.runs import UNFINISHED
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
JOB_HISTORY = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """The outcomes of one task's runs within JOB_HISTORY."""

    name: str
    runs: int
    failed: int
    unfinished: int
    repeated: int
    """Repeated messages that had no effect."""
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """The state of an active queued sale."""

    sale: str
    backlog: int | None
    """Reservations whose order is not written yet; None while Redis is unavailable."""
    left: int | None
    """Units that may be reserved; None while Redis is unavailable or the sale is not loaded."""
    available: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Stock audit, jobs, queued sales and counters at `as_of`."""

    as_of: datetime
    last_audit: tuple[datetime, list[StockAudit]] | None
    queues: list[QueueSummary]
    rejected: list[RejectedReservation]
    tasks: list[TaskSummary]
    runs: list[JobRun]
    lookups: dict[str, dict[str, int]]
    keys: dict[str, int]
    """Uses of idempotency keys by outcome, since the process started."""
    newest_keys: list[IdempotencyKey]


def get_statistics() -> Statistics:
    """Return the statistics, read at most five seconds ago."""
    return single_flight.get_or_build("ops:statistics", _read_statistics, ttl=TTL, stale=STALE)


def _read_statistics() -> Statistics:
    now = timezone.now()
    since = JobRun.objects.filter(scheduled_for__gt=now - JOB_HISTORY, scheduled_for__lte=now)
    tasks = (
        since.order_by("task")
        .values("task")
        .annotate(
            runs=Count("pk"),
            failed=Count("pk", filter=Q(state=JobRun.State.FAILED)),
            unfinished=Count("pk", filter=Q(state__in=UNFINISHED)),
            repeated=Sum("duplicates"),
            last=Max("scheduled_for"),
        )
    )
    totals = metrics.totals()
    sends = totals.get("locking_idempotency_total", {})
    return Statistics(
        as_of=now,
        last_audit=alerts.last_audit(),
        queues=_queues(),
        rejected=list(RejectedReservation.objects.select_related("sale")[:NEWEST]),
        tasks=[TaskSummary(name=one.pop("task"), **one) for one in tasks],
        runs=list(since[:NEWEST]),
        lookups=metrics.lookups(totals),
        keys={outcome: int(value) for (outcome,), value in sorted(sends.items())},
        newest_keys=list(IdempotencyKey.objects.defer("headers", "body")[:NEWEST]),
    )


def _queues() -> list[QueueSummary]:
    """Return backlog and remaining units of each queued sale; the audit has its drift."""
    found, is_up = [], True
    for sale in sales_under_way().annotate(refused=Count("rejected")):
        backlog = left = None
        try:
            if is_up:
                backlog, left = store.backlog(sale=sale), store.left(sale=sale)
        except ServiceUnavailable:
            is_up = False  # wait for Redis once, not for each sale
        found.append(
            QueueSummary(
                sale=sale.slug,
                backlog=backlog,
                left=left,
                available=sale.stock.quantity,
                rejected=sale.refused,
            )
        )
    return found
