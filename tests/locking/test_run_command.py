"""`manage.py locks run`: real programs under the locks of real databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError, call_command

from devservers import MariaDb, PostgreSql
from devservers.faults.waiting import until
from locking import locks
from tests.devservers.pgbouncer import PgBouncer

ROOT = Path(__file__).parents[2]
PROCESSES = int(os.environ.get("RUN_PROCESSES", "2"))
MIGRATE = [sys.executable, "-m", "django", "migrate", "--verbosity=0", "--skip-checks"]
Start = Callable[..., subprocess.Popen[str]]


def create(server: MariaDb | PostgreSql, name: str) -> str:
    """Return the URL of a new, empty database."""
    head, _, query = server.url.partition("?")
    if isinstance(server, MariaDb):
        server.execute(f"CREATE DATABASE {name}")
    else:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    return f"{head.rpartition('/')[0]}/{name}" + (query and f"?{query}")


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a program with the library's settings on a database."""
    started: list[subprocess.Popen[str]] = []

    def process(url: str, *command: str) -> subprocess.Popen[str]:
        env = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.locking.settings"}
        pipe = subprocess.PIPE
        one = subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=pipe, stderr=pipe)
        started.append(one)
        return one

    yield process
    for one in started:
        one.kill()
        one.communicate()


def under(lock: str, *command: str, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "django", "locks", "run", lock, *options, "--", *command]


def shell(text: str) -> tuple[str, ...]:
    return "sh", "-c", text


@pytest.fixture(params=["mariadb", "pgbouncer"])
def empty(
    request: pytest.FixtureRequest, mariadb: MariaDb, postgresql: PostgreSql
) -> Iterator[str]:
    """Return the URL of a new database; that of PostgreSQL is behind a pooler."""
    if request.param == "mariadb":
        yield create(mariadb, "guarded")
        return
    create(postgresql, "guarded")
    with PgBouncer(postgresql) as pooler:
        yield pooler.url.replace("/shop", "/guarded")


def test_first_migrations_of_several_machines_run_one_at_a_time(empty, start, tmp_path) -> None:
    log = tmp_path / "log"
    once = shell(f"echo begin >> {log} && {' '.join(MIGRATE)} && echo end >> {log}")
    migrating = [start(empty, *under("migrate", *once)) for _ in range(PROCESSES)]
    ends = [(one.wait(), one.stderr.read()) for one in migrating]
    assert ends == [(0, "")] * PROCESSES
    assert log.read_text().split() == ["begin", "end"] * PROCESSES


def test_first_migrations_without_the_lock_fail(postgresql, start) -> None:
    """The control: two create the same table, unless one is done before the other begins."""
    for attempt in range(5):
        bare = create(postgresql, f"bare_{attempt}")
        racing = [start(bare, *MIGRATE) for _ in range(PROCESSES)]
        if sum(one.wait() != 0 for one in racing):
            return
    pytest.fail("they did not meet")


@pytest.mark.parametrize(
    ("command", "options", "code", "told"),
    [
        (("sh", "-c", "exit 3"), (), 3, ""),
        (("sh", "-c", "kill -9 $$"), (), 128 + signal.SIGKILL, ""),
        (("no-such-program",), (), 127, ""),
        ((str(ROOT),), (), 126, ""),
        (("true",), ("--timeout=-1",), 1, r"Invalid timeout -1\.0"),
        (("true",), ("--timeout=1", "--skip-if-held"), 1, "not allowed with argument"),
        (("true",), ("--backend=reddis",), 1, "Did you mean 'redis'"),
    ],
)
def test_exit_code_is_the_programs(command, options, code, told, capfd) -> None:
    options = ("--backend=redis", *options)
    with pytest.raises((SystemExit, CommandError), match=told or str(code)) as ended:
        call_command("locks", "run", "codes", *options, "--", *command)
    assert told or ended.value.code == code
    assert (command[0] in capfd.readouterr().err) == (code in (126, 127))
    assert not locks["redis"].lock("codes").locked()


def test_unreachable_database_runs_nothing(start, tmp_path) -> None:
    url = "postgresql://postgres@127.0.0.1:9/shop"
    one = start(url, *under("codes", "touch", str(tmp_path / "ran")))
    assert one.wait() == 69
    assert "refused" in one.stderr.read()
    assert not (tmp_path / "ran").exists()


Running = tuple[subprocess.Popen[str], tuple[str, ...], str, Callable[[], None]]
TRAP = "trap 'echo stopped; exit 5' TERM; touch {}; while :; do sleep 0.05; done"


@pytest.fixture(params=["mariadb", "postgresql", "redis"])
def running(
    request: pytest.FixtureRequest,
    mariadb: MariaDb,
    postgresql: PostgreSql,
    start: Start,
    tmp_path: Path,
) -> Iterator[Running]:
    """A program that runs under a lock: the process, its options and URL, what takes the lock."""
    server = mariadb if request.param == "mariadb" else postgresql
    options = ("--backend=redis",) if request.param == "redis" else ()
    ready = tmp_path / "ready"
    one = start(server.url, *under("one", *shell(TRAP.format(ready)), options=options))
    until(ready.exists, "the program", 60)

    def take() -> None:
        if request.param == "mariadb":
            server.execute("KILL USER root")
        elif request.param == "postgresql":
            with psycopg.connect(server.url, autocommit=True) as root:
                sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                assert root.execute(sql).fetchall() == [(True,)]
        else:
            options = ("--backend=redis", "--break=one", "--yes-break=one")
            broken = start(server.url, sys.executable, "-m", "django", "locks", *options)
            assert broken.wait() == 0

    yield one, options, server.url, take
    one.send_signal(signal.SIGTERM)


def test_held_lock_is_waited_for_or_skipped(running, start, tmp_path) -> None:
    """And a signal reaches the program, whose end frees the lock."""
    one, options, url, _ = running
    ran = tmp_path / "ran"
    command = ("touch", str(ran))
    late = start(url, *under("one", *command, options=(*options, "--timeout=0.3")))
    skips = start(url, *under("one", *command, options=(*options, "--skip-if-held")))
    assert (late.wait(), skips.wait()) == (75, 0)
    assert "held" in late.stderr.read()
    assert "held" in skips.stderr.read()
    assert not ran.exists()
    waits = start(url, *under("one", *command, options=options))
    one.send_signal(signal.SIGTERM)
    assert (one.wait(), one.stdout.read()) == (5, "stopped\n")
    assert waits.wait() == 0
    assert ran.exists()


def test_lost_lock_stops_the_program(running) -> None:
    one, _, _, take = running
    take()
    assert (one.wait(), one.stdout.read()) == (79, "stopped\n")
    assert "'one' was lost" in one.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.parametrize("running", ["redis"], indirect=True)
def test_program_dies_with_its_supervisor(running, tmp_path) -> None:
    """Otherwise it would run beside the next holder."""
    one, *_ = running
    children = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()
    (program,) = children
    one.kill()
    until(lambda: not Path(f"/proc/{program}").exists(), "the end of the program", 20)
