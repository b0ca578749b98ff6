"""The drill of docs/how-to/back-up-and-restore.md: each of its steps, and two left out."""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

from devservers import HOST, Redis
from devservers.faults import waiting
from devservers.programs import required
from inventory.models import StockMovement
from locking import locks, policy
from shop.errors import Overloaded
from shop.models import Order, Sale, User
from shop.reservations import store
from shop.reservations.consumer import Consumer
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.shop.purchases import buy
from tests.shop.queued import ask, status
from tests.shop.races.race_worker import RaceWorker, a_form

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.only("mysql"),
]
ROOT = Path(__file__).parent.parent
until = partial(waiting.until, seconds=120.0)
BEFORE = 20
"""Orders of each sale when the dump begins."""


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    locks.close()


def back_up(folder: Path) -> Path:
    """Make a dump with the script of the service `backup`; return its file."""
    where = connection.settings_dict
    env = {
        "PATH": f"{Path(required('mariadb-dump')).parent}:{os.defpath}",
        "BACKUPS": str(folder),
        "MYSQL_HOST": HOST,
        "MYSQL_TCP_PORT": str(where["PORT"]),
        "MYSQL_USER": "root",
        "MYSQL_DATABASE": where["NAME"],
    }
    subprocess.run(["sh", ROOT / "deploy/backup.sh", "once"], env=env, check=True)
    (file,) = folder.iterdir()
    return file


def load(dump: Path) -> None:
    where = connection.settings_dict
    options = [f"--host={HOST}", f"--port={where['PORT']}", "--user=root"]
    command = [required("mariadb"), *options, where["NAME"]]
    subprocess.run(command, input=gzip.decompress(dump.read_bytes()), check=True)


@contextmanager
def selling(direct: Sale, queued: Sale) -> Iterator[None]:
    """Both sales go on, and a consumer writes, while the block runs."""
    stop = threading.Event()

    def again(one: Callable[[Sale], object], sale: Sale) -> None:
        try:
            while not stop.is_set():
                with suppress(Overloaded):
                    one(sale)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        work = [
            pool.submit(again, buy, direct),
            pool.submit(again, ask, queued),
            pool.submit(Consumer(stop).run),
        ]
        try:
            yield
        finally:
            stop.set()
        for each in work:
            each.result()


def dump(direct: Sale, queued: Sale, folder: Path) -> tuple[Path, int, int]:
    """Back up while it sells; the file, and how many orders there were before and after."""

    def orders(*sales: Sale) -> int:
        return Order.objects.filter(sale__in=sales).count()

    def dumped() -> tuple[Path, int, int] | None:
        first = orders(direct, queued)
        file = back_up(Path(tempfile.mkdtemp(dir=folder)))
        last = orders(direct, queued)
        return (file, first, last) if first < last else None

    with selling(direct, queued):
        until(lambda: min(orders(direct), orders(queued)) >= BEFORE, "orders")
        return until(dumped, "a sale during the dump")


@pytest.fixture
def queue(settings: Any) -> Iterator[str]:
    """Give queued sales a Redis of their own; return its address."""
    with Redis() as server:
        settings.QUEUE_REDIS_URL = server.url
        yield server.url


@pytest.mark.parametrize(
    ("flushed", "command"),
    [
        (True, ["after_restore", "redis"]),
        # The controls.
        (False, ["after_restore", "redis"]),
        (True, ["lock_policy", "switch", "redis", "--force"]),
    ],
    ids=["as written", "only REDIS_URL flushed", "only switched"],
)
def test_a_restore(
    processes: Callable[[int], list[RaceWorker]],
    flushed: bool,
    command: list[str],
    tmp_path: Path,
    queue: str,
) -> None:
    put_in_force("redis")
    direct, queued = a_sale(stock=5000), a_sale(stock=5000, fulfilment=Sale.Fulfilment.QUEUED)
    customer, other = a_customer(), a_customer()
    (late,) = processes(1)
    file, first, last = dump(direct, queued, tmp_path)
    # The time that will be lost: the lock is switched twice, and everybody buys.
    for backend in ("database", "redis"):
        lost_epoch = policy.switch(backend=backend, force=True).epoch
    lost_order = buy(direct).order
    lost_ticket = ask(queued, other)
    late.run_until("stock.read", a_form(direct, customer=customer.pk))
    late.pause()

    load(file)
    for url in [settings.REDIS_URL, *[queue] * flushed]:
        redis.Redis.from_url(url).flushall()
    call_command("migrate", verbosity=0)
    call_command(*command)
    call_command("audit_stock")
    assert first <= Order.objects.count() <= last
    assert not Order.objects.filter(number=lost_order.number).exists()

    # A lease of the lost time.
    late.resume()
    assert "order" in late.finish()[0], "it buys again, under the lock in force"
    (order,) = Order.objects.filter(customer=customer)
    (line,) = StockMovement.objects.filter(order_number=order.number)
    stock = fresh(direct).stock
    if command[0] == "after_restore":
        assert stock.stale_writes_refused == 1
        assert line.fence_epoch == policy.current().epoch > lost_epoch
    else:
        assert (stock.stale_writes_refused, line.fence_epoch) == (0, lost_epoch)
        with pytest.raises(Overloaded):  # the row takes none of the epoch in force any more
            buy(direct)
        assert fresh(direct).stock.stale_writes_refused
        return

    # A reservation of the lost time, then one of now.
    buy(direct)
    now = ask(queued)
    consumer = Consumer(threading.Event())
    until(lambda: consumer.round() and not store.backlog(sale=fresh(queued)), "a written backlog")
    assert (status(lost_ticket) == "won") is not flushed
    assert (
        status(now) == "won" or not flushed
    )  # the control may take it for that of a lost customer
    call_command("audit_stock")


def test_restore_of_a_dump_before_an_upgrade_can_be_upgraded(tmp_path: Path) -> None:
    """The upgrade's tables stayed, and the migrations that create them failed."""
    dump = back_up(tmp_path)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE of_the_upgrade (id INT)")
    late = a_customer()
    load(dump)
    assert "of_the_upgrade" not in connection.introspection.table_names()
    assert not User.objects.filter(pk=late.pk).exists()


def test_rows_are_fenced_off_before_the_switch_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two, a holder of the lost time could still write."""
    put_in_force("redis")
    sale, epochs = a_sale(), []
    activate = policy.switch

    def observe(**wanted: Any) -> Any:
        epochs.append(fresh(sale).stock.fence_epoch)
        return activate(**wanted)

    monkeypatch.setattr(policy, "switch", observe)
    call_command("after_restore", "redis")
    assert epochs == [policy.current(0).epoch]
    assert epochs[0] > 1
    assert buy(sale)
