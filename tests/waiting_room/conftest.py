"""Processes that share the rooms of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.waiting_room.room_worker import RoomWorker


@pytest.fixture
def workers(database_url: str) -> Iterator[Callable[..., list[RoomWorker]]]:
    """`workers(2)`: two processes of the shop, on the test's own database."""
    started: list[RoomWorker] = []

    def start(number: int) -> list[RoomWorker]:
        new = [RoomWorker(database_url) for _ in range(number)]
        started.extend(new)
        return new

    yield start
    for worker in started:
        worker.close()
