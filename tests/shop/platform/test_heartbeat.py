"""Workers and consumers as real processes: their metrics, their heartbeat and their end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from ruamel.yaml import YAML

from devservers import HOST, reserve_port
from devservers.faults.waiting import until
from devservers.process import is_stopped
from shop.models import Order
from tests.shop.making import put_in_force
from tests.shop.queued import a_queued_sale, ask, assert_sound

pytestmark = [pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = {
    "worker": ["-m", "celery", "-A", "shop", "worker", "--concurrency", "1"],
    "consumer": ["manage.py", "consume_orders"],
}
NO_BROKER = {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
TIMEOUT = 120.0


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


def test_process_serves_metrics_and_its_health_check_follows_its_heartbeat(process) -> None:
    running, environ = process
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    (check,) = {services[name]["healthcheck"]["test"][1] for name in COMMANDS}
    command = ["sh", "-c", check.replace("$$", "$")]

    def is_healthy() -> bool:
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        return done.returncode == 0

    beat = Path(environ["HEARTBEAT_FILE"])
    assert not is_healthy()
    until(beat.exists, "the first heartbeat", TIMEOUT)
    assert is_healthy()
    running.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(running.pid), "the end of what it was doing")
    old = time.time() - 20
    os.utime(beat, (old, old))
    assert not is_healthy()
    running.send_signal(signal.SIGCONT)
    until(lambda: beat.stat().st_mtime > old + 1, "a heartbeat after it resumed", TIMEOUT)
    assert is_healthy()
    with urlopen(f"http://{HOST}:{environ['METRICS_PORT']}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")


@pytest.mark.stores
@pytest.mark.parametrize("process", ["consumer"], indirect=True)
def test_consumer_writes_orders_and_ends(process) -> None:
    put_in_force("redis")
    sale = a_queued_sale()
    ask(sale)
    running, _ = process
    until(lambda: Order.objects.exists(), "the order", TIMEOUT)
    running.terminate()
    assert running.wait(30) == 0
    assert_sound(sale, held=1, left=9)
