"""What one HTTP load costs the shop, as the figures of a line of the table."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import connections

from devservers.process_pool import TIMEOUT, ProcessPool
from loadtest.bench.purchase.web import WebServer
from loadtest.load.http.client import Replies, send_requests
from loadtest.load.verdict import percentile
from locking import locks

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
