"""HTTP metrics for Prometheus."""

import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from prometheus_client import Counter, Histogram

from locking.metrics import BUCKETS

RESPONSES = Counter("shop_http_responses_total", "HTTP responses", ["status"])
RESPONSES.labels("500")  # starts at 0: Prometheus sees no increase in a series that starts at 1
SECONDS = Histogram("shop_http_request_seconds", "Time to serve an HTTP request", buckets=BUCKETS)


@lru_cache(maxsize=100)
def _responses(status: str) -> Counter:
    return RESPONSES.labels(status)


class RequestMetrics:
    """A WSGI application that counts the responses of another and measures their time."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serve the request; the measured time ends when the body can be sent."""
        began = time.perf_counter()

        def start(status: str, *rest: Any) -> Any:
            _responses(status[:3]).inc()
            return start_response(status, *rest)

        try:
            return self.application(environ, start)
        finally:
            SECONDS.observe(time.perf_counter() - began)
