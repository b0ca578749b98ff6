"""docker-compose.yml as processes: all parts well, nginx in front, restarts that lose nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from email.message import Message
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import urlencode

import pytest
from redis import Redis

from devservers import reserve_port
from devservers.faults.waiting import until
from devservers.programs import required
from tools.stack import Stack, passes

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
# What a buyer may be told in a restart; no other 5xx.
HARMLESS = {"won", "sold_out", "503", "busy", "crowded", "store_down", "too_many"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    required("nginx")  # rather than after all the stores have started
    with Stack() as stack:
        stack.up()
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


def refused(port: str) -> str:
    command = [sys.executable, "tools/stack.py"]
    env = {**os.environ, "PORT": port}
    done = subprocess.run(
        command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    return done.stderr


def test_what_is_no_port_is_refused() -> None:
    assert refused("web") == "\nPORT=web is not a port: it is a number from 1 to 65535.\n"


def test_port_of_another_program_is_named_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused(str(port)).startswith(
            f"\nPort {port} cannot be used (Address already in use)"
        )


def test_signal_ends_the_start(tmp_path: Path) -> None:
    """With SIGTERM, the data stayed in the temporary directory."""
    port, mark = reserve_port()
    with mark:
        stack = subprocess.Popen(
            [sys.executable, "tools/stack.py"],
            cwd=ROOT,
            env={**os.environ, "PORT": str(port), "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with stack:
            until(lambda: list(tmp_path.glob("seckill-mariadb-*/data")), "a store", PATIENCE)
            stack.terminate()
            try:
                said, _ = stack.communicate(timeout=PATIENCE)
            finally:
                stack.kill()
    assert "healthy" not in said
    assert stack.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_script_of_manage_py_finds_a_project_with_a_space_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, stack = tmp_path / "my shop", Stack()
    project.mkdir()
    (project / "manage.py").write_text("print('managed')")
    monkeypatch.setattr("tools.stack.ROOT", project)
    stack.folder = tmp_path
    env = {"PATH": str(Path(sys.executable).parent), "PROMETHEUS_MULTIPROC_DIR": ""}
    stack.commands["web-1"] = [], env
    stack.close()
    done = subprocess.run(["/bin/sh", stack.write_manage()], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"managed\n"


def test_health_check_that_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Docker; on a busy machine the start ended with a traceback."""
    monkeypatch.setattr("tools.stack.CHECK_SECONDS", 2.0)
    assert not passes(["sleep", "60"], dict(os.environ))
    assert passes(["true"], dict(os.environ))


def test_every_health_check_of_the_file_passes(stack: Stack) -> None:
    """Each as written in it; a part that has ended fails its own."""
    names = {name for name, *_ in stack.checks()}
    kinds = ("web", "worker", "consumer", "beat")
    assert names == {f"{kind}-{number}" for kind in kinds for number in (1, 2)} | {"proxy"}
    assert all(part.process.poll() is None for part in stack.parts.values())


def test_all_locks_are_to_be_had(stack: Stack) -> None:
    code = "from locking import locks; [locks[name].probe() for name in locks]; print(*locks)"
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", code],
        cwd=ROOT,
        env=stack.commands["web-1"][1],
        capture_output=True,
        text=True,
        check=True,
    )
    known = {"none", "process", "database", "redis", "mysql_session", "redlock", "zookeeper"}
    assert set(done.stdout.split()) >= known


def test_metrics_are_served_inside_only(stack: Stack) -> None:
    for name, of in (
        ("web-1", "shop_http_responses_total"),
        ("worker-1", "locking_job_runs_total"),
        ("consumer-1", "shop_oldest_reservation_seconds"),  # it acquires no lock before an order
    ):
        deadline = time.monotonic() + PATIENCE
        while of not in (page := get(f"http://{stack.addresses[name]}/metrics")[2]):
            assert time.monotonic() < deadline, page
            time.sleep(0.5)
    for path in ("metrics", "readyz"):
        assert get(stack.url + path)[0] == 404


def test_a_forged_address_moves_no_limit(stack: Stack) -> None:
    """A name is locked for an address: it stays locked for every header value."""

    def sign_in(address: str) -> int:
        page = f"{stack.url}accounts/sign-in/"
        _, headers, text = get(page)
        secret = text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        cookie = headers["Set-Cookie"].split(";")[0]
        form = {"username": "li", "password": "wrong", "csrfmiddlewaretoken": secret}
        return get(page, form, Cookie=cookie, **{"X-Forwarded-For": address})[0]

    told = [sign_in(f"203.0.113.{number}") for number in range(11)]
    assert told == [400] * 10 + [429]


def restart(stack: Stack, *names: str) -> list[int]:
    """Stop parts with SIGTERM and start them again; return their exit codes."""
    processes = [stack.parts[name].process for name in names]
    for process in processes:
        process.terminate()
    codes = [process.wait(PATIENCE) for process in processes]
    for name in names:
        stack.start(name)
    return codes


def renew_passwords(stack: Stack, *names: str) -> None:
    """Let the stores accept a second password, as docs/how-to/rotate-the-secrets.md says.

    The parts of these names use it from their next start on.
    """
    database, servers = (stack.variables[f"{store}_PASSWORD"] for store in ("MYSQL", "REDIS"))
    way = "mysql_native_password USING PASSWORD(%s)"
    sql(stack, f"ALTER USER shop IDENTIFIED VIA {way} OR {way}", database, f"{database}2")
    for name in [name for name in stack.addresses if name.endswith(":6379")]:
        with Redis.from_url(f"redis://:{servers}@{stack.addresses[name]}") as client:
            client.execute_command("ACL", "SETUSER", "default", f">{servers}2")
    for _, env in (stack.commands[name] for name in names):
        for variable, value in env.items():
            for old in (database, servers):
                env[variable] = re.sub(rf"\b{old}\b", f"{old}2", env[variable])
            assert env[variable] == value or variable.endswith(("_URL", "_URLS"))


HEAD = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
MALFORMED = {
    "negative length": HEAD + b"Content-Length: -1\r\n\r\nabc",
    "length with a sign": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "length in words": HEAD + b"Content-Length: three\r\n\r\nabc",
    "no length": HEAD + b"Content-Length:\r\n\r\nabc",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "huge length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "large length": HEAD + b"Content-Length: 4000000\r\n\r\nabc",
    "chunks and length": HEAD + CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "chunks without size": HEAD + CHUNKED + b"\r\nzz\r\nabc\r\n0\r\n\r\n",
    "negative chunk": HEAD + CHUNKED + b"\r\n-3\r\nabc\r\n0\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: cow\r\n\r\nabc",
    "many headers": HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(5000)) + b"\r\n",
    "large header": HEAD + b"X: %b\r\n\r\n" % (b"a" * 300_000),
    "large path": b"GET %%b?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 100_000),
    "header without name": HEAD + b": a\r\n\r\n",
    "header with NUL": HEAD + b"X: a\0b\r\n\r\n",
    "unknown version": b"GET %b HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\0%b\r\n\r\n",
}
REFUSALS = {400, 401, 403, 408, 411, 413, 414, 431, 501, 505}


def said_to(address: str, request: bytes) -> bytes:
    """All that is said until the connection is closed; the request may not be read to its end."""
    host, port = address.split(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as wire:
        with suppress(OSError):  # ENOTCONN, too: who is refused early is cut off
            wire.sendall(request)
            wire.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while chunk := wire.recv(65536):
                said += chunk
    return said


@pytest.mark.parametrize("door", ["gunicorn", "nginx"])
def test_malformed_requests_are_refused(stack: Stack, door: str) -> None:
    """400, 413 and their kin, or a closed connection; and whoever comes next is served."""
    address = stack.addresses["web-1"] if door == "gunicorn" else f"127.0.0.1:{stack.port}"
    _, _, page = get(stack.url)
    sale = page.split('href="/sales/')[1].split("/")[0]
    path = f"/sales/{sale}/buy/".encode()
    before = orders(stack)
    for what, request in MALFORMED.items():
        said = said_to(address, request % path)
        assert b"Traceback" not in said, what
        statuses = [int(line[9:12]) for line in said.split(b"\r\n") if line[:7] == b"HTTP/1."]
        assert set(statuses) <= REFUSALS, (what, statuses)
        assert get(f"http://{address}/")[0] == 200, what
    assert orders(stack) == before


def test_half_requests_stop_nobody(stack: Stack) -> None:
    """Many more than there are threads; nginx waits for them, and not for long."""
    halves = [b"GET / HTTP/1.1\r\nHost: local", HEAD % b"/" + b"Content-Length: 9\r\n\r\nabc"]
    with ExitStack() as open_:
        wires = []
        for half in halves * 100:
            address = ("127.0.0.1", stack.port)
            wires.append(open_.enter_context(socket.create_connection(address, PATIENCE)))
            wires[-1].sendall(half)
        assert get(stack.url)[0] == 200
        assert select(wires[-2:], [], [], 0) == ([], [], []), "it was served when they had gone"
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
    asked = [f"--attempts={attempts}", f"--stock={stock}", f"--buyers={stock + 100}"]
    asked += ["--processes=1", "--connections=8", *["--queued"] * (fulfilment == "queued")]
    with subprocess.Popen(
        [sys.executable, "manage.py", "lab", "http", "--url", stack.url, "--json", *asked],
        cwd=ROOT,
        env=stack.commands["web-1"][1] | {"DJANGO_SETTINGS_MODULE": "shop.settings.lab"},
        stdout=subprocess.PIPE,
        text=True,
    ) as rush:
        try:
            deadline = time.monotonic() + PATIENCE
            while not (sold := orders(stack, "lab-http-%", fulfilment)) > 20:
                assert rush.poll() is None
                assert time.monotonic() < deadline, "nobody buys"
                time.sleep(0.05)
            stack.parts["web-1"].process.send_signal(signal.SIGHUP)
            both = ["worker-1", "consumer-1"] if fulfilment == "queued" else []
            renew_passwords(stack, "web-2", *both)
            codes = restart(stack, "web-2", *both)
            assert rush.poll() is None, "nobody bought during the restart"
            stack.wait_healthy({"web-1", "web-2", "worker-1", "consumer-1"}, PATIENCE)
            said, _ = rush.communicate(timeout=PATIENCE)
            ready = f"http://{stack.addresses['web-2']}/readyz"
            until(lambda: get(ready)[0] == 200, "web-2 reaching its stores", PATIENCE)
        finally:
            rush.kill()
    report = json.loads(said)
    assert sold < stock, "all was sold before the first restart"
    assert sum(answer["count"] for answer in report["answers"].values()) == attempts
    assert set(codes) == {0}
    assert report["verdict"] == "ok", report
    assert report["orders"] == report["winners"] == stock
    assert report["answers"].keys() <= HARMLESS, report["answers"]


def test_a_web_that_moved_is_found(stack: Stack) -> None:
    """New containers have new addresses; nginx was told of none of these when it started."""
    before = {stack.addresses[name] for name in stack.named("web")}
    restart(stack, *stack.named("web"))
    assert before.isdisjoint(stack.addresses[name] for name in stack.named("web"))
    # Each of nginx's processes asks for itself.
    until(lambda: {get(stack.url)[0] for _ in range(20)} == {200}, "nginx learning them", PATIENCE)
