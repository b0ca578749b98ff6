"""Processes that the races of one session share; a test gets as many as it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.shop.races.process import Process, start_server

_idle: list[Process] = []


@pytest.fixture(scope="session", autouse=True)
def _end() -> Iterator[None]:
    yield
    for process in _idle:
        process.close()


@pytest.fixture
def processes(database_url: str) -> Iterator[Callable[[int], list[Process]]]:
    """`processes(3)`: three processes of the shop, on the test's own database."""
    start_server(database_url)
    mine: list[Process] = []

    def give(number: int) -> list[Process]:
        given = [_idle.pop() if _idle else Process() for _ in range(number)]
        mine.extend(given)
        return given

    yield give
    for process in mine:
        # One that is still at work, as after a failed test, is of no use to the next.
        if process.is_alive and process.is_done:
            _idle.append(process)
        else:
            process.close()
