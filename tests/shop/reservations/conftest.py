"""Consumers that do not wait, and a Redis of the test's own."""

from collections.abc import Iterator

import pytest

from devservers import Redis
from shop.reservations import consumer, order_writer


@pytest.fixture(autouse=True)
def hasty(in_force: None, monkeypatch) -> None:
    """Remove the waits of consumers."""
    for wait in ("PAUSE", "BATCH_WINDOW", "REFRESH_INTERVAL"):
        monkeypatch.setattr(consumer, wait, 0.0 if wait == "REFRESH_INTERVAL" else 0.01)
    # A test's transaction has to last.
    monkeypatch.setattr(consumer, "close_old_connections", lambda: None)
    monkeypatch.setattr(order_writer, "_reconnect", lambda: None)


@pytest.fixture
def redis(settings) -> Iterator[Redis]:
    """A private Redis that the test may destroy."""
    with Redis() as server:
        settings.REDIS_URL = settings.QUEUE_REDIS_URL = server.url
        yield server
