"""Two lock backends for the tests of switching: `old` is active, `new` is the other one."""

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import locks
from locking.lease import LockStore
from locking.policy import active, lock, switching
from tests.locking.modes import PATH as MODES
from tests.locking.scripted import PATH


@pytest.fixture
def two_backends(settings, monkeypatch) -> None:
    """Activate `old`, with times so long that a slow machine ends no lease and no switch."""
    conf = {"BACKEND": PATH, "TTL": 30, "TIMEOUT": 5}
    settings.LOCKS = {
        "old": conf,
        "new": conf,
        "blind": {"BACKEND": "locking.backends.process.ProcessBackend", "TTL": 0.2},
    }
    settings.LOCK_POLICY = {"BACKEND": "old", "MODE": "checked", "MODES": MODES}
    monkeypatch.setattr(active, "MAX_AGE", 0.1)
    monkeypatch.setattr(active, "FRESH", 0.05)
    monkeypatch.setattr(switching, "SWITCH_GRACE", 30)
    # A read of the policy may take long on a loaded machine; its time limit has tests of its own.
    monkeypatch.setattr(lock, "LAST_READ", WAIT_TIMEOUT)


@pytest.fixture
def old() -> LockStore:
    return locks["old"]


@pytest.fixture
def new() -> LockStore:
    return locks["new"]
