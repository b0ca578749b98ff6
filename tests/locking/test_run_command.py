"""`manage.py locks run`: real programs under the locks of real databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest
from django.core.management import CommandError, call_command

from devservers import MariaDb, PostgreSql
from devservers.faults.waiting import until
from devservers.process import process_state
from locking import locks
from locking.backends.database.sql import digest
from locking.management import run
from tests.devservers.pgbouncer import PgBouncer
from tests.locking.lock_worker import Forked
from tests.locking.scripted import PATH, unavailable

ROOT = Path(__file__).parents[2]
PROCESSES = int(os.environ.get("RUN_PROCESSES", "2"))
DJANGO = (sys.executable, "-m", "django")
MIGRATE = (*DJANGO, "migrate", "locking", "--verbosity=0", "--skip-checks")


class Commands:
    """The commands of a process on a database."""

    def __init__(self, url: str) -> None:
        os.environ["DATABASE_URL"] = url  # of the programs, too
        os.environ["PYTHONPATH"] = str(ROOT)

    def run(self, lock: str, *words: str) -> tuple[int, str]:
        """Return the exit code of `locks run`, and what it says."""
        said = StringIO()
        with pytest.raises(SystemExit) as ended:
            call_command("locks", "run", lock, *words, stderr=said)
        return ended.value.code, said.getvalue()

    def warns_at_once(self, *command: str) -> bool:
        """Return whether `locks run` warns of a transaction that is open for no time."""
        run.CHECK_SECONDS, run.LONG_SECONDS = 0.01, 0.0
        with patch.object(run.logger, "warning") as warning:
            assert self.run("one", "--", *command)[0] == 0
        return warning.called

    def poll_slowly(self, lock: str) -> tuple[int, str]:
        run.POLL_SECONDS = 60.0
        return self.run(lock, "--", "true")

    def run_and_close_nothing(self, lock: str) -> tuple[int, str]:
        with patch.object(run.SessionPool, "close", autospec=True) as self.open:
            return self.run(lock, "--", "true")

    def break_lock(self, name: str) -> bool:
        return locks["redis"].break_lock(name)


Start = Callable[[str], Forked]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process with the library's settings on a database."""
    started: list[Forked] = []

    def process(url: str) -> Forked:
        started.append(Forked(Commands, url, databases={"default": url}))
        return started[-1]

    yield process
    for one in started:
        one.close()


def create(server: MariaDb | PostgreSql, name: str) -> str:
    """Return the URL of a new, empty database."""
    head, _, query = server.url.partition("?")
    if isinstance(server, MariaDb):
        server.execute(f"CREATE DATABASE {name}")
    else:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    return f"{head.rpartition('/')[0]}/{name}" + (query and f"?{query}")


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
    once = f"echo begin >> {log} && {' '.join(MIGRATE)} && echo end >> {log}"
    migrating = [start(empty) for _ in range(PROCESSES)]
    for one in migrating:
        one.send("run", "migrate", "--", "sh", "-c", once)
    assert [one.receive() for one in migrating] == [(0, "")] * PROCESSES
    assert log.read_text().split() == ["begin", "end"] * PROCESSES


def test_waiter_leaves_the_pooler_to_others_between_two_attempts(
    postgresql, start, tmp_path
) -> None:
    url, ready = create(postgresql, "pooled"), tmp_path / "ready"
    asked = "SELECT COUNT(*) = 2 FROM pg_stat_activity WHERE datname = 'pooled'"
    with PgBouncer(postgresql, sessions=2) as pooler:
        url = url.replace(str(postgresql.port), str(pooler.port))
        start(url).send("run", "one", "--", "sh", "-c", f"touch {ready}; exec sleep 60")
        until(ready.exists, "the holder", 60)
        start(url).send("poll_slowly", "one")
        with psycopg.connect(postgresql.url, autocommit=True) as server:
            until(lambda: server.execute(asked).fetchone() == (True,), "an attempt", 60)
        with psycopg.connect(url, autocommit=True) as other:
            assert other.execute("SELECT 1").fetchone() == (1,)


def test_first_migrations_without_the_lock_fail(postgresql) -> None:
    """The control: both find no table, and create the same one as soon as they may."""
    url = create(postgresql, "bare")
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.locking.settings", "DATABASE_URL": url}
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as server:
        other.execute("CREATE TABLE django_migrations ()")  # not committed: both wait for it
        racing = [
            subprocess.Popen(MIGRATE, env=env, cwd=ROOT, stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        waiting = "SELECT COUNT(*) = 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: server.execute(waiting).fetchone() == (True,), "both waiting", 60)
        other.rollback()
        assert sorted(one.wait() != 0 for one in racing) == [False, True]


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


def test_release_without_a_reply_leaves_the_exit_code_of_the_program(settings, caplog) -> None:
    """69 says that the program was not started."""
    settings.LOCKS = {"scripted": {"BACKEND": PATH}}
    locks["scripted"].backend.then("release", unavailable)
    with pytest.raises(SystemExit) as ended:
        call_command("locks", "run", "codes", "--backend=scripted", "--", "sh", "-c", "exit 3")
    assert ended.value.code == 3
    assert "not released: no reply" in caplog.text


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_only_an_open_transaction_deserves_a_warning(kind, request, start) -> None:
    """GET_LOCK opens none."""
    process = start(request.getfixturevalue(kind).url)
    assert process.call("warns_at_once", "sleep", "0.5") == (kind == "postgresql")


def test_program_runs_without_a_standard_input() -> None:
    """What started the command may have closed it."""
    line = f"{' '.join(DJANGO)} locks run input --backend=redis -- sh -c 'cat; exit 3' <&-"
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.locking.settings"}
    done = subprocess.run(["sh", "-c", line], env=env, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 3


def test_unreachable_database_runs_nothing(tmp_path) -> None:
    command = ("locks", "run", "codes", "--", "touch", str(tmp_path / "ran"))
    url = "postgresql://postgres@127.0.0.1:9/shop"
    env = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.locking.settings"}
    done = subprocess.run(
        [*DJANGO, *command], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69
    assert "refused" in done.stderr
    assert not (tmp_path / "ran").exists()


Running = tuple[Forked, tuple[str, ...], str, Callable[[], None]]
TRAP = "trap 'touch {0}/stopped; exit 5' TERM; touch {0}/ready; while :; do sleep 0.05; done"


def catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> number - 1 & 1)


@pytest.fixture(params=["mariadb", "postgresql", "redis"])
def running(
    request: pytest.FixtureRequest,
    mariadb: MariaDb,
    postgresql: PostgreSql,
    start: Start,
    tmp_path: Path,
) -> Running:
    """A program that runs under a lock: the process, its options and URL, what takes the lock."""
    server = mariadb if request.param == "mariadb" else postgresql
    options = ("--backend=redis",) if request.param == "redis" else ()
    one = start(server.url)
    one.send("run", "one", *options, "--", "sh", "-c", TRAP.format(tmp_path))
    until(lambda: (tmp_path / "ready").exists() and catches(one.pid, signal.SIGTERM), "it", 60)

    def take() -> None:
        if request.param == "mariadb":
            server.execute("KILL USER root")
        elif request.param == "postgresql":
            with psycopg.connect(server.url, autocommit=True) as root:
                sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                assert root.execute(sql).fetchall() == [(True,)]
        else:
            assert start(server.url).call("break_lock", "one")

    return one, options, server.url, take


def test_held_lock_is_waited_for_or_skipped(running, start, tmp_path) -> None:
    """And a signal reaches the program, whose end frees the lock."""
    one, options, url, _ = running
    other, command = start(url), ("--", "touch", str(tmp_path / "ran"))
    for option, code in (("--timeout=0.3", 75), ("--skip-if-held", 0)):
        ended, said = other.call("run", "one", *options, option, *command)
        assert (ended, "held" in said) == (code, True)
    other.send("run", "one", *options, *command)
    assert not (tmp_path / "ran").exists()
    os.kill(one.pid, signal.SIGTERM)
    assert one.receive() == (5, "")
    assert (tmp_path / "stopped").exists()
    assert other.receive() == (0, "")
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_lock_is_free_before_the_server_has_ended_the_session(kind, request, start) -> None:
    """It does that some time after the command."""
    url = request.getfixturevalue(kind).url
    first = start(url)
    assert first.call("run_and_close_nothing", "one") == (0, "")
    assert start(url).call("run", "one", "--timeout=0", "--", "true") == (0, "")


def test_earlier_releases_have_the_same_lock_on_postgresql(postgresql, start) -> None:
    """Both run while an update is rolled out."""
    held = "SELECT pg_advisory_lock(('x' || LEFT(%s, 16))::bit(64)::bigint)"
    with psycopg.connect(postgresql.url) as other:
        other.execute(held, [digest("run/shop/one")])
        assert start(postgresql.url).call("run", "one", "--timeout=0", "--", "true")[0] == 75


def test_lost_lock_stops_the_program(running, tmp_path) -> None:
    one, _, _, take = running
    take()
    code, said = one.receive()
    assert (code, "'one' was lost" in said) == (79, True)
    assert (tmp_path / "stopped").exists()


def test_lost_lock_also_stops_the_children_of_the_program(start, mariadb, tmp_path) -> None:
    """A shell dies at once; the command that it runs takes some time to end."""
    child = f"trap 'sleep 1; touch {tmp_path}/stopped; exit' TERM; touch {tmp_path}/ready; "
    child += "while :; do sleep 0.05; done"
    one = start(mariadb.url)
    one.send("run", "one", "--backend=redis", "--", "sh", "-c", f'sh -c "{child}"; true')
    until((tmp_path / "ready").exists, "the child", 60)
    assert start(mariadb.url).call("break_lock", "one")
    assert one.receive()[0] == 79
    assert (tmp_path / "stopped").exists(), "it runs on beside the next holder"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.parametrize("running", ["redis"], indirect=True)
def test_program_dies_with_its_supervisor(running) -> None:
    """Otherwise it would run beside the next holder."""
    one, *_ = running
    (program,) = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()
    one.kill()
    until(lambda: process_state(int(program)) in ("", "Z"), "the end of the program")
    locks["redis"].break_lock("one")  # other tests look for locks that were left
