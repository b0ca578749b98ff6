"""What one HTTP load costs the shop and leaves behind, as the figures of a line of the table."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.db import connections

from devservers.process_pool import TIMEOUT, ProcessPool
from loadtest.bench.purchase.web import WebServer
from loadtest.load.http.client import Replies, send_requests
from loadtest.load.sale import wait_for_orders
from loadtest.load.verdict import percentile
from locking import locks
from shop.administration.audit import audit_sale
from shop.models import Order, RejectedReservation, Sale

Figures = dict[str, Any]


def run_load(
    web: WebServer,
    forms: Iterable[bytes],
    *,
    connections_open: int,
    seconds: float,
    during: Callable[[], object] = lambda: None,
) -> tuple[Replies, float]:
    """Send the forms from a process of its own; return its answers and the workers' CPU seconds.

    `during` is called in this process while the load runs.
    """
    connections.close_all()  # a forked process must not share them
    locks.close()

    def work(_: int) -> Replies:
        return send_requests(web.port, forms, connections=connections_open, seconds=seconds)

    cpu = web.cpu()
    with ProcessPool(work) as pool:
        during()
        heard: Replies = pool.results(timeout=seconds + TIMEOUT)[0]
    return heard, web.cpu() - cpu


def figures(heard: Replies, cpu: float, *, wanted: str = "") -> Figures:
    """Return the figures of a load; only answers of the kind `wanted` count, or all if empty."""
    answers = [one for one in heard.replies if wanted in ("", one.kind)]
    in_time = sum(one.received <= heard.ended for one in answers)
    return {
        "per_second": round(in_time / (heard.ended - heard.began), 1),
        **percentiles([one.received - one.sent for one in answers]),
        "worker_cpu_ms": round(cpu / max(1, len(heard.replies)) * 1000, 3),
        "driver_cores": round(heard.cpu / (heard.replies[-1].received - heard.began), 3),
        "answers": dict(Counter(one.kind for one in heard.replies)),
    }


def percentiles(waits: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 of waits in seconds, as milliseconds."""
    return {f"p{share}_ms": round(percentile(waits, share / 100) * 1000, 2) for share in (50, 99)}


def breaches(sale: Sale, acknowledged: int, *, keeps_ledger: bool = True) -> Iterator[str]:
    """Yield the breaches of a sale, once its acknowledged orders should be written."""
    if sale.is_queued:
        wait_for_orders(sale, acknowledged)
    audit = audit_sale(sale=Sale.objects.get(pk=sale.pk))
    if keeps_ledger:
        yield from audit.breaches
    elif audit.initial != audit.available + audit.held:
        yield f"{audit.initial} initial ≠ {audit.available} available + {audit.held} held"
    if audit.reserved or audit.drift:
        yield f"{audit.reserved} reserved and not written, drift {audit.drift}"
    orders = Order.objects.filter(sale=sale).count()
    if orders != acknowledged:
        yield f"{orders} orders, {acknowledged} acknowledged"
    if rejected := RejectedReservation.objects.filter(sale=sale).count():
        yield f"{rejected} rejected"
