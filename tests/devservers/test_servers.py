"""Private servers start, crash, come back, and end with the process that started them.

Their temporary directory is removed after the end of its owner, and never before.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis as client

from devservers import (
    HOST,
    MariaDb,
    Redis,
    Server,
    ServerFailed,
    ServerMissing,
    reserve_port,
    start_all,
    stop_all,
)
from devservers.faults.waiting import until
from devservers.process import process_state, with_parent_death_signal
from devservers.temporary import temporary_directory


def alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    return process_state(pid) not in ("", "Z")


@pytest.mark.parametrize("prefer", ["installed", "embedded"])
def test_redis_serves_and_leaves_nothing(prefer: str) -> None:
    with Redis(prefer=prefer) as server, client.Redis.from_url(server.url) as connection:
        assert connection.set("name", "李")
        kind = "valkey_version" if prefer == "embedded" else "redis_version"
        assert kind in connection.info("server")
        pid, folder = server.pid, server.folder
    assert not alive(pid)
    assert not folder.exists()


def test_failed_start_reports_the_log_and_leaves_nothing() -> None:
    servers = [Redis(), Redis(config=("--no-such-setting", "1"))]
    with pytest.raises(ServerFailed, match="no-such-setting"):
        start_all(servers)
    assert not any(server.is_running or server.folder.exists() for server in servers)


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devservers.programs.shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(ServerMissing, match=r"apt-get install .* mariadb-server-core"), MariaDb():
        pass


def test_server_whose_installation_hangs_fails_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "mariadb-install-db"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr("devservers.mariadb.required", lambda name: str(script))
    monkeypatch.setattr("devservers.base.START_TIMEOUT", 0.2)
    server = MariaDb()
    with pytest.raises(ServerFailed, match="timed out"), server:
        pass
    assert not server.folder.exists()


def test_server_outlives_the_thread_that_started_it() -> None:
    """The kernel ties a child to the thread that started it; a thread of its own starts servers."""
    with Redis() as server:
        server.kill()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(server.start).result()
        assert server.is_running
        assert server.is_ready()


class Stubborn(Server):
    """It ignores SIGTERM, so that its stop takes seconds."""

    url = ""

    def command(self) -> list[str]:
        return ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]

    def is_ready(self) -> bool:
        return bool(self.log_tail())


def test_signal_during_a_stop_leaves_nothing() -> None:
    server = Stubborn()
    server.start()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            server.stop()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not alive(server.pid)
    assert not server.folder.exists()


def test_reserved_ports_are_free_and_unique() -> None:
    reserved = [reserve_port() for _ in range(200)]
    try:
        assert len({port for port, _ in reserved}) == 200
        with socket.socket() as probe:
            probe.bind((HOST, reserved[0][0]))
    finally:
        for _, mark in reserved:
            mark.close()


def test_stop_all_stops_paused_and_killed_servers() -> None:
    servers: list[Server] = [Redis(), Redis(), Redis()]
    start_all(servers)
    pids = [server.pid for server in servers]
    servers[0].pause()
    servers[1].kill()
    stop_all(servers)
    assert not any(alive(pid) for pid in pids)


# --- the process that started it, and its temporary directory ------------------------------------

OWNER = (
    "from devservers import Redis;"
    "one = Redis(); one.start(); print(one.pid, one.folder.name, flush=True); input()"
)
on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs /proc and the kernel's death signal"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(temporary):
    process = subprocess.Popen(
        with_parent_death_signal([sys.executable, "-c", OWNER]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
        text=True,
    )
    with process:
        yield process
        process.kill()


@on_linux
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_ends_with_the_process_that_started_it(how, owner) -> None:
    pid = int(owner.stdout.readline().split()[0])
    assert alive(pid)
    owner.send_signal(how)
    until(lambda: not alive(pid))


def sweep():
    temporary_directory("sweep").rmdir()


@on_linux
def test_directory_of_a_killed_owner_is_removed(owner, temporary):
    left = temporary / owner.stdout.readline().split()[1]
    sweep()
    assert (left / "log").exists(), "its owner lives"
    owner.kill()
    owner.wait()
    assert left.exists(), "it was removed too early: the test proves nothing"

    def is_gone():  # at once, unless the ending server has just written a file
        with Redis() as next_one:
            assert next_one.is_running
        return not left.exists()

    until(is_gone, "the sweep")
    assert list(temporary.iterdir()) == []


@on_linux
def test_other_directories_stay(temporary):
    mine = temporary_directory("mine").name
    here = mine.split("-")[2].partition(".")[0]
    others = [f"seckill-redis-{int(here) + 1}.999999999-abc", f"seckill-{here}.x", mine]
    ended = f"seckill-redis-{here}.999999999-abc"
    for name in (*others, ended):
        (temporary / name).mkdir(exist_ok=True)
    sweep()
    assert sorted(os.listdir(temporary)) == sorted(others)
