"""Worker processes that the races of one session share."""

from collections.abc import Callable, Iterator

import pytest

from tests.shop.races.race_worker import RaceWorker

_idle: list[RaceWorker] = []


@pytest.fixture(scope="session", autouse=True)
def _end() -> Iterator[None]:
    yield
    for process in _idle:
        process.close()


@pytest.fixture
def processes(database_url: str) -> Iterator[Callable[[int], list[RaceWorker]]]:
    """`processes(3)`: three processes of the shop, on the test's own database."""
    mine: list[RaceWorker] = []

    def give(number: int) -> list[RaceWorker]:
        given = [_idle.pop() if _idle else RaceWorker(database_url) for _ in range(number)]
        mine.extend(given)
        return given

    yield give
    for process in mine:
        # One that is still at work, as after a failed test, is of no use to the next.
        if process.is_alive and process.is_done:
            _idle.append(process)
        else:
            process.close()
