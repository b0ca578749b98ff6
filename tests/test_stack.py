"""docker-compose.yml as processes: all parts well, nginx in front, restarts that lose nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from email.message import Message
from functools import partial
from select import select
from typing import Any
from urllib.parse import urlencode

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from redis import Redis

from devservers.faults.waiting import until
from devservers.programs import required
from tests.devservers.stack import PATIENCE, ROOT, Part, Stack, passes

# What a buyer may be told in a restart; no other 5xx.
HARMLESS = {"won", "sold_out", "503", "busy", "crowded", "store_down", "too_many"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    required("nginx")  # rather than after all the stores have started
    with Stack() as stack:
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


def orders(stack: Stack, slug: str = "%", fulfilment: str = "%") -> int:
    """Return how many orders of open sales there are."""
    ((count,),) = sql(
        stack,
        "SELECT COUNT(*) FROM shop_order o JOIN shop_sale s ON s.id = o.sale_id"
        " WHERE s.slug LIKE %s AND s.fulfilment LIKE %s AND s.closes_at > UTC_TIMESTAMP()",
        slug,
        fulfilment,
    )
    return int(count)


def sql(stack: Stack, statement: str, *values: str) -> tuple[tuple[Any, ...], ...]:
    host, port = stack.addresses["mariadb:3306"].split(":")
    import MySQLdb  # not everywhere

    connection = MySQLdb.connect(host=host, port=int(port), user="root", database="shop")
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(statement, values)
        return tuple(cursor.fetchall())


def test_every_health_check_of_the_file_passes(stack: Stack) -> None:
    """Each as written in it, after its part has started."""
    kinds = ("web", "worker", "consumer", "beat")
    assert stack.parts.keys() == {f"{kind}-{number}" for kind in kinds for number in (1, 2)}
    assert all(part.is_running for part in stack.parts.values())
    inner, outer = "127.0.0.1:8080", f"127.0.0.1:{stack.nginx.port}"
    command = [word.replace(inner, outer) for word in stack.check("proxy")]
    assert passes(command, dict(os.environ))


def test_all_locks_are_to_be_had(stack: Stack) -> None:
    code = "from locking import locks; [locks[name].probe() for name in locks]; print(*locks)"
    said = stack.parts["web-1"].run("python", "manage.py", "shell", "-c", code)
    known = {"none", "process", "database", "redis", "mysql_session", "redlock", "zookeeper"}
    assert set(said.split()) >= known


def test_strangers_in_the_network_get_no_lock_of_zookeeper(stack: Stack) -> None:
    code = "from locking import locks; locks['zookeeper'].lock('a').acquire(timeout=5)"
    stack.parts["web-1"].run("python", "manage.py", "shell", "-c", code)
    stranger = KazooClient(stack.addresses["zookeeper-1:2181"])
    stranger.start()
    try:
        assert stranger.exists("/locks")
        with pytest.raises(NoAuthError):
            stranger.get_children("/locks")
    finally:
        stranger.stop()
        stranger.close()


def test_metrics_are_served_inside_only(stack: Stack) -> None:
    for name, of in (
        ("web-1", "shop_http_responses_total"),
        ("worker-1", "locking_job_runs_total"),
        ("consumer-1", "shop_oldest_reservation_seconds"),  # it acquires no lock before an order
    ):
        page = f"http://{stack.parts[name].url}/metrics"
        until(lambda page=page, of=of: of in get(page)[2], of, PATIENCE)
    for path in ("metrics", "readyz"):
        assert get(stack.nginx.url + path)[0] == 404


def test_a_forged_address_moves_no_limit(stack: Stack) -> None:
    """A name is locked for an address: it stays locked for every header value."""

    def sign_in(address: str) -> int:
        page = f"{stack.nginx.url}accounts/sign-in/"
        _, headers, text = get(page)
        secret = text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        cookie = headers["Set-Cookie"].split(";")[0]
        form = {"username": "li", "password": "wrong", "csrfmiddlewaretoken": secret}
        return get(page, form, Cookie=cookie, **{"X-Forwarded-For": address})[0]

    told = [sign_in(f"203.0.113.{number}") for number in range(11)]
    assert told == [400] * 10 + [429]


def restart(*parts: Part) -> list[int]:
    """Stop parts with SIGTERM and start them again; return their exit codes."""
    for part in parts:
        part.request_stop()
    codes = [part.exit_code() for part in parts]
    for part in parts:
        part.launch()
    return codes


def renew_passwords(stack: Stack, *parts: Part) -> None:
    """Let the stores accept a second password, as docs/how-to/rotate-the-secrets.md says.

    These parts use it from their next start on.
    """
    database, servers = (stack.variables[f"{store}_PASSWORD"] for store in ("MYSQL", "REDIS"))
    way = "mysql_native_password USING PASSWORD(%s)"
    sql(stack, f"ALTER USER shop IDENTIFIED VIA {way} OR {way}", database, f"{database}2")
    for name in [name for name in stack.addresses if name.endswith(":6379")]:
        with Redis.from_url(f"redis://:{servers}@{stack.addresses[name]}") as client:
            client.execute_command("ACL", "SETUSER", "default", f">{servers}2")
    for env in (part.env for part in parts):
        for variable, value in env.items():
            for old in (database, servers):
                env[variable] = re.sub(rf"\b{old}\b", f"{old}2", env[variable])
            assert env[variable] == value or variable.endswith(("_URL", "_URLS"))


def test_half_requests_stop_nobody(stack: Stack) -> None:
    """Many more than there are threads; nginx waits for them, and not for long."""
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc"
    halves = [b"GET / HTTP/1.1\r\nHost: local", post]
    with ExitStack() as open_:
        wires = []

        def is_served() -> bool:
            for half in halves * 100:
                address = ("127.0.0.1", stack.nginx.port)
                wires.append(open_.enter_context(socket.create_connection(address, PATIENCE)))
                wires[-1].sendall(half)
            assert get(stack.nginx.url)[0] == 200
            return select(wires[-2:], [], [], 0) == ([], [], [])

        until(is_served, "a page before nginx has sent them away")
        for wire in wires:
            assert b" 200 " not in wire.recv(4096)


# Queued units go so fast that most must be left when the first restart comes.
@pytest.mark.parametrize(
    ("fulfilment", "stock", "attempts"), [("direct", 300, 3000), ("queued", 2000, 4000)]
)
def test_a_rolling_restart_loses_nothing(
    stack: Stack, fulfilment: str, stock: int, attempts: int
) -> None:
    """HUP to one web, TERM to the other, and to a worker and a consumer, while buyers buy.

    Those that got TERM use new passwords of the stores afterwards.
    """
    web, other = stack.of("web")
    asked = [f"--attempts={attempts}", f"--stock={stock}", f"--buyers={stock + 100}"]
    asked += ["--processes=1", "--connections=8", *["--queued"] * (fulfilment == "queued")]
    with subprocess.Popen(
        [sys.executable, "manage.py", "lab", "http", "--url", stack.nginx.url, "--json", *asked],
        cwd=ROOT,
        env=web.env | {"DJANGO_SETTINGS_MODULE": "shop.settings.lab"},
        stdout=subprocess.PIPE,
        text=True,
    ) as rush:
        try:
            sold = partial(orders, stack, "lab-http-%", fulfilment)
            until(lambda: sold() > 20 or rush.poll() is not None, "purchases", PATIENCE)
            before = sold()
            os.kill(web.pid, signal.SIGHUP)
            writers = [stack.parts[name] for name in ("worker-1", "consumer-1")]
            restarted = [other, *(writers if fulfilment == "queued" else [])]
            renew_passwords(stack, *restarted)
            codes = restart(*restarted)
            assert rush.poll() is None, "nobody bought during the restart"
            for part in (web, other, *writers):
                part.wait_ready(PATIENCE)
            said, _ = rush.communicate(timeout=PATIENCE)
            ready = f"http://{other.url}/readyz"
            until(lambda: get(ready)[0] == 200, "web-2 reaching its stores", PATIENCE)
        finally:
            rush.kill()
    report = json.loads(said)
    assert before < stock, "all was sold before the first restart"
    assert sum(answer["count"] for answer in report["answers"].values()) == attempts
    assert set(codes) == {0}
    assert report["verdict"] == "ok", report
    assert report["orders"] == report["winners"] == stock
    assert report["answers"].keys() <= HARMLESS, report["answers"]


def test_a_web_that_moved_is_found(stack: Stack) -> None:
    """New containers have new addresses; nginx was told of none of these when it started."""
    webs = stack.of("web")
    before = {part.url for part in webs}
    restart(*webs)
    assert before.isdisjoint(part.url for part in webs)
    # Each of nginx's processes asks for itself.
    page = stack.nginx.url
    until(lambda: {get(page)[0] for _ in range(20)} == {200}, "nginx learning them", PATIENCE)
