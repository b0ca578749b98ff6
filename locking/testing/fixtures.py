"""Fixtures for the tests of a project: `pytest_plugins = ["locking.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from locking.testing.memory import VirtualClock


@pytest.fixture
def lock_clock() -> Iterator[VirtualClock]:
    """Keep all locks of the test in memory, and return the clock that ends their leases."""
    from locking.testing.memory import locks_in_memory  # after django.setup()

    with locks_in_memory() as clock:
        yield clock


@pytest.fixture
def no_locks_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a lock that was acquired in the test is still held at its end."""
    from locking.handler import locks

    if "lock_clock" in request.fixturenames:
        request.getfixturevalue("lock_clock")  # it must outlive this fixture

    def held() -> set[tuple[str, str, str]]:
        leases = [lease for store in locks.opened() for lease in list(store.held.values())]
        return {(lease.name, lease.backend.alias, lease.owner) for lease in leases}

    before = held()
    yield
    left = [f"{name!r} in {alias!r}" for name, alias, _ in sorted(held() - before)]
    assert not left, f"still locked at the end of the test: {', '.join(left)}"
