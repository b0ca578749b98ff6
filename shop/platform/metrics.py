"""What the shop answers, counted for Prometheus."""

import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from prometheus_client import Counter, Histogram

from locking.metrics import BUCKETS

ANSWERS = Counter("shop_http_answers_total", "Answers over HTTP", ["status"])
ANSWERS.labels("500")  # at 0 from the start: Prometheus sees no growth in a series born at 1
SECONDS = Histogram("shop_http_seconds", "From a request to its answer", buckets=BUCKETS)


@lru_cache(maxsize=100)
def _answers(status: str) -> Counter:
    return ANSWERS.labels(status)


class Counted:
    """A WSGI application around another that counts its answers."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serve it; the time ends when the body is ready to be sent."""
        begun = time.perf_counter()

        def start(status: str, *rest: Any) -> Any:
            _answers(status[:3]).inc()
            return start_response(status, *rest)

        try:
            return self.application(environ, start)
        finally:
            SECONDS.observe(time.perf_counter() - begun)
