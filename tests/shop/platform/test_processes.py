"""Workers, consumers and web servers as real processes: metrics, heartbeat, and their end.

SIGTERM gives back the locks that a process holds; SIGKILL, the control, leaves them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
import requests
from django.db import transaction
from ruamel.yaml import YAML

from devservers import HOST, reserve_port
from devservers.faults import waiting
from devservers.process import is_stopped, process_state, with_parent_death_signal
from loadtest.bench.purchase.web import WebServer
from locking import locks
from shop.models import Order
from shop.operations.rates import read_last_minute
from tests.shop.making import a_sale, put_in_force
from tests.shop.web.wsgi_browser import Browser

pytestmark = [pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = {
    "worker": ["-m", "celery", "-A", "shop", "worker", "--concurrency", "1"],
    "consumer": ["manage.py", "consume_orders"],
}
NO_BROKER = {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
PATIENCE = 120.0
until = partial(waiting.until, seconds=PATIENCE)


@pytest.fixture(params=COMMANDS)
def process(request, database_url, tmp_path) -> Iterator[tuple[subprocess.Popen[bytes], dict]]:
    port, mark = reserve_port()
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    environ = {
        **os.environ,
        "DATABASE_URL": database_url,
        "HEARTBEAT_FILE": str(tmp_path / "heartbeat"),
        "METRICS_PORT": str(port),
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
        **(NO_BROKER if request.param == "consumer" else {}),
    }
    command = [sys.executable, *COMMANDS[request.param]]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=log, stderr=log)
        yield process, environ
        process.kill()
        process.wait()
    mark.close()


def test_process_is_observed_and_its_health_check_follows_its_heartbeat(process, request) -> None:
    """It serves metrics, and the operations page counts it."""
    running, environ = process
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    (check,) = {services[name]["healthcheck"]["test"][1] for name in COMMANDS}
    command = ["sh", "-c", check.replace("$$", "$")]

    def is_healthy() -> bool:
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        return done.returncode == 0

    beat = Path(environ["HEARTBEAT_FILE"])
    assert not is_healthy()
    until(beat.exists, "the first heartbeat")
    assert is_healthy()
    running.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(running.pid), "the end of what it was doing")
    old = time.time() - 20
    os.utime(beat, (old, old))
    assert not is_healthy()
    running.send_signal(signal.SIGCONT)
    until(lambda: beat.stat().st_mtime > old + 1, "a heartbeat after it resumed")
    assert is_healthy()
    with urlopen(f"http://{HOST}:{environ['METRICS_PORT']}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
    role = request.node.callspec.params["process"]
    until(lambda: read_last_minute().processes[role] == 1, "its rates")


def is_held(name: str) -> bool:
    return name in {held.name for held in locks["redis"].inspect()}


HOLD = """
from locking import locks
from redis import Redis
from django.conf import settings
with locks["redis"].lock({name!r}, ttl=30):
    Redis.from_url(settings.REDIS_URL).blpop({name!r} + "-go")
"""


@pytest.mark.parametrize(("how", "left"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_management_command_releases_its_lock(how, left, tmp_path) -> None:
    name = f"sigterm:{tmp_path.name}"
    command = [sys.executable, "manage.py", "shell", "-c", HOLD.format(name=name)]
    with subprocess.Popen(with_parent_death_signal(command), cwd=ROOT) as process:
        try:
            until(lambda: is_held(name), "the lock")
            process.send_signal(how)
            process.wait(PATIENCE)
        finally:
            process.kill()
    assert locks["redis"].break_lock(name) is left  # a switch in a later test would wait for it


def test_web_server_finishes_the_purchase(database_url, monkeypatch) -> None:
    """The purchase holds its lock and waits for another transaction."""
    put_in_force("redis")
    sale, li = a_sale(stock=3), Browser()
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
    assert Order.objects.get().status == "pending"


ORPHANS = {
    "celery": """
import os, time
from celery import platforms
from shop.celery import app

def late(signal, ask=platforms.set_pdeathsig):
    os.write(1, b"%d\\n" % os.getpid())
    while os.getppid() == parent:
        time.sleep(0.01)
    ask(signal)

parent, platforms.set_pdeathsig = os.getpid(), late
app.worker_main(["--quiet", "worker", "--concurrency", "2"])
""",
    "multiprocessing": """
import multiprocessing, os, signal, time
from devservers.process import die_with_parent

def child():
    os.write(1, b"%d\\n" % os.getpid())
    while os.getppid() == parent:
        time.sleep(0.01)
    die_with_parent()
    signal.pause()

parent = os.getpid()
for _ in range(2):
    multiprocessing.get_context("fork").Process(target=child).start()
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, children stay")
@pytest.mark.parametrize("kind", ORPHANS)
def test_children_end_whose_parent_died_before_they_could_ask_for_that(kind: str) -> None:
    environ = {**os.environ, **NO_BROKER}
    command = [sys.executable, "-c", ORPHANS[kind]]
    with subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            children = [int(parent.stdout.readline()) for _ in range(2)]
        finally:
            parent.kill()
    try:
        until(lambda: {process_state(child) for child in children} <= {"", "Z"}, "their end")
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
