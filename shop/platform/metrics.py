"""HTTP metrics for Prometheus."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from prometheus_client import Counter, Histogram

from locking.metrics import BUCKETS

RESPONSES = Counter("shop_http_responses_total", "HTTP responses", ["status"])
RESPONSES.labels("500")  # starts at 0: Prometheus sees no increase in a series that starts at 1
SECONDS = Histogram("shop_http_request_seconds", "Time to serve an HTTP request", buckets=BUCKETS)


def metrics_middleware(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Count the responses and measure the time until each can be sent."""

    def serve(request: HttpRequest) -> HttpResponse:
        with SECONDS.time():
            response = get_response(request)
        RESPONSES.labels(str(response.status_code)).inc()
        return response

    return serve
