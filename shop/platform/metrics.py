"""HTTP metrics for Prometheus."""

import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from prometheus_client import Counter, Gauge, Histogram

from locking.metrics import BUCKETS

RESPONSES = Counter("shop_http_responses_total", "HTTP responses", ["status"])
RESPONSES.labels("500")  # starts at 0: Prometheus sees no increase in a series that starts at 1
ORDERS = Counter("shop_orders_total", "Orders written")
WAITING_BUYERS = Gauge(
    "shop_waiting_buyers",
    "Purchases that wait for the lock of their sale or hold it",
    multiprocess_mode="livesum",
)
SECONDS = Histogram("shop_http_request_seconds", "Time to serve an HTTP request", buckets=BUCKETS)


def metrics_middleware(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
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
