"""A shop of two lock backends, `old` in force and `new` beside it, for the tests of switching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connections

from locking import locks, policy
from locking.models import LockPolicy
from tests.locking.scripted import PATH, ScriptedBackend

AGE = 0.1
"""Seconds that a policy is trusted here."""


@pytest.fixture(autouse=True)
def two_backends(settings, monkeypatch) -> None:
    """`old` is in force, `new` is there. No lease and no switch ends for a slow machine's sake."""
    conf = {"BACKEND": PATH, "TTL": 30, "TIMEOUT": 0.5}
    settings.LOCKS = {
        "old": conf,
        "new": conf,
        "blind": {"BACKEND": "locking.backends.process.ProcessBackend", "TTL": 0.2},
    }
    settings.LOCK_POLICY = {"BACKEND": "old", "STRATEGY": "conditional"}
    monkeypatch.setattr(policy, "MAX_AGE", AGE)
    monkeypatch.setattr(policy, "FRESH", AGE / 2)
    monkeypatch.setattr(policy, "SWITCH_GRACE", 30)


@pytest.fixture
def old() -> ScriptedBackend:
    return locks["old"]


@pytest.fixture
def new() -> ScriptedBackend:
    return locks["new"]


@pytest.fixture
def apart(transactional_db: None) -> Iterator[Callable[..., Future]]:
    """Run something in a thread of its own."""
    with ThreadPoolExecutor(8) as pool:

        def call(work: Callable, *args, **kwargs):
            try:
                return work(*args, **kwargs)
            finally:
                connections.close_all()

        yield lambda *args, **kwargs: pool.submit(call, *args, **kwargs)


def row() -> LockPolicy:
    """What the database says is in force."""
    return LockPolicy.objects.get()
