"""A backend without a store."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from locking.handler import create

BEAT_TESTS = ["jobs/test_beat.py", "jobs/test_without_time_zones.py"]
collect_ignore = [] if find_spec("django_celery_beat") else BEAT_TESTS
"""django-celery-beat lags behind Django; `make matrix` then tests without it."""


@pytest.fixture
def process() -> Iterator[object]:
    backend = create("process", {"BACKEND": "locking.backends.process.ProcessBackend"})
    yield backend
    backend.close()
