"""Lock backends, staff and lock holders for the tests of the operations page."""

import threading

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


@pytest.fixture
def ben() -> Client:
    """Return the browser of staff without permissions."""
    return signed_in(User.objects.create(username="ben", is_staff=True))


def backend_in_force() -> str:
    return LockPolicy.objects.get(pk=1).backend


@pytest.fixture
def holder():
    """`holder(name)` holds a lock in a thread of its own until the test ends, or it is let go."""
    ended: list[tuple[threading.Event, threading.Thread]] = []

    def hold(name: str, alias: str = "") -> threading.Event:
        go, has = threading.Event(), threading.Event()

        def run() -> None:
            guard = locks[alias].lock(name) if alias else lock(name)
            with guard:
                has.set()
                go.wait(60)
            connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        ended.append((go, thread))
        assert has.wait(30)
        return go

    yield hold
    for go, thread in ended:
        go.set()
        thread.join(20)
