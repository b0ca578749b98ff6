"""SIGTERM gives back the locks that a process holds; SIGKILL, the control, leaves them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import requests
from django.db import transaction

from devservers.faults import waiting
from devservers.process import with_parent_death_signal
from loadtest.bench.purchase.web import WebServer
from locking import locks
from shop.administration.audit import audit_sale
from shop.models import Sale
from tests.shop.making import a_sale, put_in_force
from tests.shop.web.wsgi_browser import Browser

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0
until = partial(waiting.until, seconds=PATIENCE)
TTL = 30.0

pytestmark = pytest.mark.django_db(transaction=True)


def is_held(name: str) -> bool:
    return name in {held.name for held in locks["redis"].inspect()}


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        with_parent_death_signal([sys.executable, *command]), cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


HOLD = """
from locking import locks
from redis import Redis
from django.conf import settings
with locks["redis"].lock({name!r}, ttl={ttl}):
    Redis.from_url(settings.REDIS_URL).blpop({name!r} + "-go")
"""


@pytest.mark.parametrize(("how", "left"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_management_command_releases_its_lock(
    how: signal.Signals, left: bool, tmp_path: Path
) -> None:
    name = f"sigterm:{tmp_path.name}"
    with started(["manage.py", "shell", "-c", HOLD.format(name=name, ttl=TTL)]) as process:
        until(lambda: is_held(name), "the lock")
        process.send_signal(how)
        process.wait(PATIENCE)
    assert locks["redis"].break_lock(name) is left  # a switch in a later test would wait for it


@pytest.fixture
def sale() -> Sale:
    put_in_force("redis")
    return a_sale(stock=3)


def test_web_server_finishes_the_purchase(
    sale: Sale, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purchase holds its lock and waits for another transaction."""
    li = Browser()
    headers = {"Accept": "application/json", "Cookie": f"sessionid={li.session}"}
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for limit in ("LOCK_TIMEOUT", "HARD_DEADLINE"):
        monkeypatch.setenv(limit, str(PATIENCE))  # the first request may be slow
    name, form = f"sale:{sale.pk}", li.form(sale)
    with WebServer(1) as web, ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            sale.stock.save()  # takes the write lock, or the row's
            path = f"{web.url.rstrip('/')}{sale.get_absolute_url()}buy/"
            bought = pool.submit(requests.post, path, form, headers=headers, timeout=PATIENCE)
            until(lambda: is_held(name), "the lock")
            os.kill(web.pid, signal.SIGTERM)
        assert bought.result(PATIENCE).status_code == 201
        until(lambda: not web.is_running, "the end of the web")
    assert not is_held(name)
    assert audit_sale(sale=sale).held == 1
