"""The shop's fixtures, rooms whose state is read for every call, and a Redis of the test's own."""

import threading
from collections.abc import Iterator

import pytest

from devservers import Redis
from devservers.faults.waiting import until
from shop.purchase import admission
from tests.shop.conftest import amy, in_force, patient
from waiting_room import service, views

__all__ = ["amy", "in_force", "patient"]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Forget the positions that pages kept; a draw may not outlast its test and its database."""
    views.clear()
    yield
    until(lambda: not any(one.name == "lottery" for one in threading.enumerate()), "the draws")


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Let a test change the state and look again."""
    monkeypatch.setattr(service, "STATUS_MAX_AGE", 0)
    monkeypatch.setattr(admission, "MAX_AGE", 0)


@pytest.fixture
def redis(settings) -> Iterator[Redis]:
    """A private Redis of rooms, with an append-only file as in production."""
    with Redis(config=["--appendonly", "yes", "--appendfsync", "everysec"]) as server:
        settings.REDIS_URL = server.url
        yield server
