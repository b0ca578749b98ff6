"""A backend without a store."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from locking.handler import create
from tests.locking.backends.contract import IdleWorkers

BEAT_TESTS = ["jobs/test_beat.py", "jobs/test_without_time_zones.py"]
collect_ignore = [] if find_spec("django_celery_beat") else BEAT_TESTS
"""django-celery-beat lags behind Django; `make matrix` then tests without it."""


@pytest.fixture(scope="session")
def idle_workers() -> Iterator[IdleWorkers]:
    """Return the processes that no test uses at the moment."""
    workers: IdleWorkers = []
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture
def process() -> Iterator[object]:
    backend = create("process", {"BACKEND": "locking.backends.process.ProcessBackend"})
    yield backend
    backend.close()
