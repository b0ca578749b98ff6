"""Fixtures of the library's tests."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from locking.handler import create

collect_ignore = [] if find_spec("django_celery_beat") else ["jobs/test_beat.py"]
"""django-celery-beat lags behind Django; `make matrix` then tests without it."""


@pytest.fixture
def process() -> Iterator[object]:
    backend = create("process", {"BACKEND": "locking.backends.process.ProcessBackend"})
    yield backend
    backend.close()


@pytest.fixture(params=[True, False], ids=["time zones", "USE_TZ = False"])
def time_zones(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.USE_TZ = request.param
    settings.TIME_ZONE = "Asia/Shanghai"  # unlike UTC, so that a confusion shows
