"""Lock backends, staff and lock holders for the tests of the operations page."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client

from locking import lock, locks, policy
from locking.models import LockPolicy
from shop.models import User
from tests.shop.making import put_in_force, signed_in

seen_by_threads = pytest.mark.django_db(transaction=True)

CLOSED_PORT = "redis://127.0.0.1:9/0"
SWITCH = {"backend": "database", "mode": "conditional", "reason": "maintenance"}


@pytest.fixture(autouse=True)
def few_backends(settings):
    """Keep only backends that respond at once; `redis` is active."""
    settings.LOCKS = {
        name: settings.LOCKS[name] for name in ("none", "process", "database", "redis")
    }
    settings.REDLOCK_URLS, settings.ZOOKEEPER_HOSTS = [], ""
    cache.clear()
    put_in_force("redis")
    yield
    policy.cancel_switch()
    for thread in threading.enumerate():
        if thread.name == "finish-switch":
            thread.join(60)


@pytest.fixture
def ben() -> Client:
    """Return the browser of staff without permissions."""
    return signed_in(User.objects.create(username="ben", is_staff=True))


def backend_in_force() -> str:
    return LockPolicy.objects.get(pk=1).backend


@contextmanager
def held(name: str, alias: str = "", *, waiters: int = 0) -> Iterator[threading.Event]:
    """Hold a lock until the end or the event, while other threads wait for it."""
    go, has = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[alias].lock(name) if alias else lock(name, timeout=600):
            has.set()
            go.wait(600)
        connection.close()

    threads = [threading.Thread(target=hold) for _ in range(1 + waiters)]
    threads[0].start()
    assert has.wait(30)
    for thread in threads[1:]:
        thread.start()
    try:
        yield go
    finally:
        go.set()
        for thread in threads:
            thread.join(60)


@pytest.fixture
def holder() -> Iterator[Callable[..., threading.Event]]:
    """`holder(name)` holds a lock until the test ends, or it is let go."""
    with ExitStack() as stack:
        yield lambda *of: stack.enter_context(held(*of))
