"""Two lock backends for the tests of switching: `old` is active, `new` is the other one."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connections

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import locks
from locking.models import LockPolicy
from locking.policy import active, lock, switching
from tests.locking.modes import PATH as MODES
from tests.locking.scripted import PATH, ScriptedBackend

AGE = 0.1
"""MAX_AGE of a policy in these tests, in seconds."""


@pytest.fixture(autouse=True)
def two_backends(settings, monkeypatch) -> None:
    """Activate `old`, with times so long that a slow machine ends no lease and no switch."""
    conf = {"BACKEND": PATH, "TTL": 30, "TIMEOUT": 0.5}
    settings.LOCKS = {
        "old": conf,
        "new": conf,
        "blind": {"BACKEND": "locking.backends.process.ProcessBackend", "TTL": 0.2},
    }
    settings.LOCK_POLICY = {"BACKEND": "old", "MODE": "checked", "MODES": MODES}
    monkeypatch.setattr(active, "MAX_AGE", AGE)
    monkeypatch.setattr(active, "FRESH", AGE / 2)
    monkeypatch.setattr(switching, "SWITCH_GRACE", 30)
    # A read of the policy may take long on a loaded machine; its time limit has tests of its own.
    monkeypatch.setattr(lock, "LAST_READ", WAIT_TIMEOUT)


@pytest.fixture
def old() -> ScriptedBackend:
    return locks["old"]


@pytest.fixture
def new() -> ScriptedBackend:
    return locks["new"]


@pytest.fixture
def apart(transactional_db: None) -> Iterator[Callable[..., Future]]:
    """Run functions in other threads."""
    with ThreadPoolExecutor(8) as pool:

        def call(work: Callable, *args, **kwargs):
            try:
                return work(*args, **kwargs)
            finally:
                connections.close_all()

        yield lambda *args, **kwargs: pool.submit(call, *args, **kwargs)


def row() -> LockPolicy:
    """Return the policy in the database."""
    return LockPolicy.objects.get()
