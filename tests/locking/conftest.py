"""A backend without a store."""

from collections.abc import Iterator

import pytest

from locking.handler import create


@pytest.fixture
def process() -> Iterator[object]:
    backend = create("process", {"BACKEND": "locking.backends.process.ProcessBackend"})
    yield backend
    backend.close()
