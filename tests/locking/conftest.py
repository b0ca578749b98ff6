"""Fixtures of the library's tests."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
from django.db import connections

from locking import locks
from locking.handler import create
from locking.lease import LockStore
from tests.locking.scripted import PATH

collect_ignore = [] if find_spec("django_celery_beat") else ["jobs/test_beat.py"]
"""django-celery-beat lags behind Django; `make matrix` then tests without it."""


@pytest.fixture
def process() -> Iterator[LockStore]:
    backend = create("process", {"BACKEND": "locking.backends.process.ProcessBackend"})
    yield backend
    backend.close()


@pytest.fixture
def backend(settings: Any) -> LockStore:
    """Scripted locks, which are active: the first of LOCKS, without a policy in the database."""
    settings.LOCKS = {"scripted": {"BACKEND": PATH}, "other": {"BACKEND": PATH}}
    del settings.LOCK_POLICY
    return locks["scripted"]


@pytest.fixture
def apart(transactional_db: None) -> Iterator[Callable[..., Future[Any]]]:
    """Run functions in other threads."""
    with ThreadPoolExecutor(8) as pool:

        def call(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                return work(*args, **kwargs)
            finally:
                connections.close_all()

        yield lambda *args, **kwargs: pool.submit(call, *args, **kwargs)


@pytest.fixture(params=[True, False], ids=["time zones", "USE_TZ = False"])
def time_zones(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.USE_TZ = request.param
    settings.TIME_ZONE = "Asia/Shanghai"  # unlike UTC, so that a confusion shows
