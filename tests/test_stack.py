"""docker-compose.yml as processes: all parts well, nginx in front, restarts that lose nothing."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.parse import urlencode

import MySQLdb
import pytest

from loadtest.processes import required
from tools.stack import Stack

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
# What a buyer may be told in a restart; no other 5xx.
HARMLESS = {"won", "sold_out", "503", "busy", "crowded", "in_flight", "store_down", "too_many"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    required("nginx")  # rather than after all the stores have started
    with Stack() as stack:
        stack.wait_healthy(seconds=PATIENCE)
        yield stack


def get(url: str, form: dict[str, str] | None = None, **headers: str) -> tuple[int, Message, str]:
    data = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def orders(stack: Stack, slug: str = "lab-rush-%") -> int:
    host, port = stack.addresses["mysql:3306"].split(":")
    connection = MySQLdb.connect(host=host, port=int(port), user="root", database="shop")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM shop_order o JOIN shop_sale s ON s.id = o.sale_id"
            " WHERE s.slug LIKE %s AND s.closes_at > UTC_TIMESTAMP()",
            (slug,),
        )
        (count,) = cursor.fetchone()
    connection.close()
    return count


def test_every_health_check_of_the_file_passes(stack: Stack) -> None:
    """Each as written in it; a part that has ended fails its own."""
    names = {name for name, *_ in stack.checks()}
    assert names == {"web-1", "web-2", "worker-1", "worker-2", "beat-1", "beat-2", "proxy"}
    assert all(part.process.poll() is None for part in stack.parts.values())


def test_all_locks_are_to_be_had(stack: Stack) -> None:
    code = "from locking import locks; [locks[name].probe() for name in locks]; print(*locks)"
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", code],
        cwd=ROOT,
        env=stack.environment("web-1"),
        capture_output=True,
        text=True,
        check=True,
    )
    known = {"none", "process", "database", "redis", "mysql_session", "redlock", "zookeeper"}
    assert set(done.stdout.split()) >= known


def test_metrics_of_web_and_worker_are_for_inside(stack: Stack) -> None:
    for name, of in (("web-1", "shop_http_answers_total"), ("worker-1", "locking_job_runs_total")):
        deadline = time.monotonic() + PATIENCE
        while of not in (page := get(f"http://{stack.addresses[name]}/metrics")[2]):
            assert time.monotonic() < deadline, page
            time.sleep(0.5)
    assert get(f"http://{stack.addresses['worker-1']}/readyz")[0] == 200
    assert get(f"http://{stack.addresses['worker-1']}/")[0] == 404
    for path in ("metrics", "readyz"):
        assert get(stack.url + path)[0] == 404


def test_a_request_has_one_name_which_nginx_gives(stack: Stack) -> None:
    status, headers, _ = get(stack.url, **{"X-Request-ID": "forged"})
    assert status == 200
    assert len(headers["X-Request-ID"]) == 32


def test_a_forged_address_moves_no_limit(stack: Stack) -> None:
    """A name is locked for an address: it stays locked whatever the header claims."""

    def sign_in(address: str) -> int:
        page = f"{stack.url}accounts/sign-in/"
        _, headers, text = get(page)
        secret = text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        cookie = headers["Set-Cookie"].split(";")[0]
        form = {"username": "li", "password": "wrong", "csrfmiddlewaretoken": secret}
        return get(page, form, Cookie=cookie, **{"X-Forwarded-For": address})[0]

    told = [sign_in(f"203.0.113.{number}") for number in range(11)]
    assert told == [400] * 10 + [429]


ATTEMPTS = 12_000


# Queued pieces go so fast that most must be left when the first restart comes.
@pytest.mark.parametrize(("fulfilment", "stock"), [("direct", 400), ("queued", 4000)])
def test_a_rolling_restart_loses_nothing(stack: Stack, fulfilment: str, stock: int) -> None:
    """HUP to one web, TERM to the other, and to a worker with its consumer, while buyers buy."""
    asked = [f"--attempts={ATTEMPTS}", f"--stock={stock}", f"--buyers={stock + 100}"]
    asked += ["--processes=1", "--connections=16"]
    command = [sys.executable, "manage.py", "lab", "http", "--url", stack.url, "--json", *asked]
    with subprocess.Popen(
        command + ["--queued"] * (fulfilment == "queued"),
        cwd=ROOT,
        env=stack.environment("web-1"),
        stdout=subprocess.PIPE,
        text=True,
    ) as rush:
        try:
            deadline = time.monotonic() + PATIENCE
            while not (sold := orders(stack)) > 20:
                assert rush.poll() is None
                assert time.monotonic() < deadline, "nobody buys"
                time.sleep(0.05)
            stack.parts["web-1"].process.send_signal(signal.SIGHUP)
            both = ["worker-1"] if fulfilment == "queued" else []
            codes = stack.restart("web-2", *both, seconds=PATIENCE)
            stack.wait_healthy({"web-1", "web-2", "worker-1"}, PATIENCE)
            said, _ = rush.communicate(timeout=PATIENCE)
        finally:
            rush.kill()
    report = json.loads(said)
    assert sold < stock, "all was sold before the first restart"
    answered = sum(answer["count"] for answer in report["answers"].values())
    assert answered == ATTEMPTS
    assert set(codes) == {0}
    assert report["verdict"] == "ok", report
    assert report["orders"] == report["winners"] == stock
    assert report["answers"].keys() <= HARMLESS, report["answers"]
