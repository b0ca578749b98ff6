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
def no_keys_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if the test leaves a held lock in a store of LOCKS, whichever process acquired it."""
    from locking.handler import locks

    def held() -> set[tuple[str, str, str]]:
        stores = [locks[alias] for alias in locks]  # after releases that are left to their threads:
        asked = [(each.alias, each.backend.helper.submit(each.inspect)) for each in stores]
        return {(one.name, alias, one.owner) for alias, reply in asked for one in reply.result()}

    if "lock_clock" in request.fixturenames:
        request.getfixturevalue("lock_clock")  # it must outlive this fixture
    before = held()
    yield
    left = [f"{name!r} in {alias!r}" for name, alias, _ in sorted(held() - before)]
    assert not left, f"left in its store at the end of the test: {', '.join(left)}"
