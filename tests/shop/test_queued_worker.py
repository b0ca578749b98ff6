"""A Celery worker brings a consumer with it: started again when it dies, gone with the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from loadtest import faults
from loadtest.faults import state_of
from shop.audit import audit_sale
from shop.models import Order, Sale
from shop.queued.reserving import reserve
from tests.shop.making import a_customer, a_sale, fresh, put_in_force

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

PATIENCE = 60.0
until = partial(faults.until, seconds=PATIENCE)


def consumers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"consume_orders" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@pytest.fixture
def worker(database_url, tmp_path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "DATABASE_URL": database_url, "QUEUED_CONSUMERS": "1"}
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--concurrency", "1"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        yield process
        process.kill()
        process.wait()


def test_orders_are_written_whoever_dies(worker) -> None:
    put_in_force("redis")
    sale = fresh(a_sale(fulfilment=Sale.Fulfilment.QUEUED))

    def buys() -> None:
        reserve(customer_id=a_customer().pk, sale=fresh(sale), quantity=1, key="k")

    buys()
    (first,) = until(lambda: consumers_of(worker.pid), "a consumer")
    until(lambda: Order.objects.count() == 1, "its order")
    os.kill(first, signal.SIGKILL)
    buys()
    (second,) = until(lambda: set(consumers_of(worker.pid)) - {first}, "another consumer")
    until(lambda: Order.objects.count() == 2, "its order")
    worker.send_signal(signal.SIGTERM)
    began = time.monotonic()
    until(lambda: state_of(second) in ("", "Z"), "its end")
    assert time.monotonic() - began < 10
    worker.wait(PATIENCE)
    assert audit_sale(sale=fresh(sale)).ok


def test_a_consumer_ends_with_its_killed_worker(worker) -> None:
    (consumer,) = until(lambda: consumers_of(worker.pid), "a consumer")
    worker.kill()
    worker.wait()
    until(lambda: state_of(consumer) in ("", "Z"), "its end")
