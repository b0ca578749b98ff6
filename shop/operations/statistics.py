"""Jobs, queued sales and counters, at most five seconds old."""

from contextlib import suppress
from typing import Any

from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from locking import metrics, single_flight
from locking.jobs.runs import UNFINISHED
from locking.models import IdempotencyKey, JobRun
from shop.errors import ServiceUnavailable
from shop.models import RejectedReservation, Sale
from shop.operations.live import JOB_HISTORY
from shop.reservations import store
from shop.reservations.reconciliation import sales_under_way

TTL = 4.5
STALE = 10.0
NEWEST = 8


def get_statistics() -> dict[str, Any]:
    """Return the `statistics` of templates/ops/_statistics.html, at most five seconds old."""
    return single_flight.get_or_build("ops:statistics", _read_statistics, ttl=TTL, stale=STALE)


def _read_statistics() -> dict[str, Any]:
    now = timezone.now()
    runs = JobRun.objects.filter(scheduled_for__gt=now - JOB_HISTORY, scheduled_for__lte=now)
    tasks = (
        runs.order_by("task")
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
    requests = totals.get("locking_idempotency_total", {})
    sales = sales_under_way().annotate(refused=Count("rejected"))
    return {
        "as_of": now,
        "queues": [_queue(sale) for sale in sales],
        "rejected": list(RejectedReservation.objects.select_related("sale")[:NEWEST]),
        "tasks": list(tasks),
        "runs": list(runs[:NEWEST]),
        "lookups": metrics.lookups(totals),
        "keys": {outcome: int(count) for (outcome,), count in sorted(requests.items())},
        "newest_keys": list(IdempotencyKey.objects.defer("headers", "body")[:NEWEST]),
    }


def _queue(sale: Sale) -> dict[str, Any]:
    """Return a queued sale with its backlog and remaining units; the audit has its drift."""
    backlog = left = None  # unknown while Redis is unavailable
    with suppress(ServiceUnavailable):
        backlog, left = store.backlog(sale=sale), store.left(sale=sale)
    return {"sale": sale, "backlog": backlog, "left": left}
