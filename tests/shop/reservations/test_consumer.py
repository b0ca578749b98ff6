"""`manage.py consume_orders` as a process: no worker, no broker, replaced when it dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from devservers.faults import waiting
from shop.administration.audit import audit_sale
from shop.models import Order
from tests.shop.making import fresh, put_in_force
from tests.shop.queued import a_queued_sale, ask

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

TIMEOUT = 60.0
until = partial(waiting.until, seconds=TIMEOUT)


@pytest.fixture
def start(database_url, tmp_path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start consumers that can reach the database and Redis, but no broker."""
    broker = "redis://127.0.0.1:1/0"
    environ = {**os.environ, "DATABASE_URL": database_url, "CELERY_BROKER_URL": broker}
    processes: list[subprocess.Popen[bytes]] = []
    with (tmp_path / "log").open("w") as log:

        def start() -> subprocess.Popen[bytes]:
            command = [sys.executable, "manage.py", "consume_orders"]
            processes.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
            return processes[-1]

        yield start
        for process in processes:
            process.kill()
            process.wait()


def test_consumer_replaces_a_killed_one_and_ends(start) -> None:
    put_in_force("redis")
    sale = a_queued_sale()
    ask(sale)
    first = start()
    until(lambda: Order.objects.count() == 1, "the first order")
    first.kill()
    first.wait()
    ask(sale)
    second = start()
    until(lambda: Order.objects.count() == 2, "the second order")
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert audit_sale(sale=fresh(sale)).ok
