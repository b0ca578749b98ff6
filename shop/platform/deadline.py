"""The deadline of the current request, which bounds all of its waits together.

It is a context variable, so functions need not pass it on. Outside a request, a service that waits
starts a deadline of its own: `@within_deadline()`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from shop.platform.headers import Handler


class Deadline:
    """The time limits of one request; `started_at` is when it arrived (monotonic)."""

    def __init__(self, started_at: float | None = None) -> None:
        self.started_at = time.monotonic() if started_at is None else started_at

    def left(self, seconds: float) -> float:
        """Return the time until `seconds` after the arrival; never negative."""
        return max(0.0, self.started_at + seconds - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True once HARD_DEADLINE has passed: a purchase begins no write, a page reads less."""
        return not self.left(settings.HARD_DEADLINE)


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def current_deadline() -> Deadline:
    """Return the deadline of the current request, or a new one outside a request."""
    return _current.get() or Deadline()


@contextmanager
def within_deadline(deadline: Deadline | None = None) -> Iterator[None]:
    """Run the block or the decorated function within a deadline, by default the current one."""
    token = _current.set(deadline or current_deadline())
    try:
        yield
    finally:
        _current.reset(token)


def deadline_middleware(get_response: Handler) -> Handler:
    """Start the deadline of each request."""

    def serve(request: HttpRequest) -> HttpResponse:
        with within_deadline(Deadline()):
            return get_response(request)

    return serve
