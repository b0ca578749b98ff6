"""HTTP metrics for Prometheus; metrics and liveness of the processes that serve no pages."""

import time
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import Counter, Gauge, Histogram, start_http_server

from locking.metrics import BUCKETS, registry
from shop.platform.headers import Handler

RESPONSES = Counter("shop_http_responses_total", "HTTP responses", ["status"])
RESPONSES.labels("500")  # starts at 0: Prometheus sees no increase in a series that starts at 1
ORDERS = Counter("shop_orders_total", "Orders written")
PAYMENT_MISMATCHES = Counter(
    "shop_payment_mismatches_total", "Reports of payments whose amount or currency is not theirs"
)
WAITING_BUYERS = Gauge(
    "shop_waiting_buyers",
    "Purchases that wait for the lock of their sale or hold it",
    multiprocess_mode="livesum",
)
SECONDS = Histogram("shop_http_request_seconds", "Time to serve an HTTP request", buckets=BUCKETS)


def metrics_middleware(get_response: Handler) -> Handler:
    """Count the responses and measure the time until each can be sent."""

    def serve(request: HttpRequest) -> HttpResponse:
        started_at = time.perf_counter()
        try:
            response = get_response(request)
        finally:
            SECONDS.observe(time.perf_counter() - started_at)
        RESPONSES.labels(response.status_code).inc()
        return response

    return serve


def serve_metrics() -> None:
    """Serve Prometheus metrics on METRICS_PORT from a daemon thread; 0 serves nothing."""
    if settings.METRICS_PORT:
        start_http_server(settings.METRICS_PORT, registry=registry())


def beat() -> None:
    """Touch HEARTBEAT_FILE; the container's health check fails while the file is old."""
    if settings.HEARTBEAT_FILE:
        Path(settings.HEARTBEAT_FILE).touch()
