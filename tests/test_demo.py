"""`make demo`: it serves, keeps its data, leaves no process behind and says what stops it."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest
import redis

from devservers import HOST, reserve_port
from devservers.faults.waiting import until
from tests import programs
from tools import demo
from tools.demo import STORE_VARIABLES
from tools.supervisor import Part, stop

ROOT = Path(__file__).parent.parent
SHELL = "/bin/sh"


@pytest.fixture
def port() -> Iterator[int]:
    number, mark = reserve_port()
    yield number
    mark.close()


def test_stores_are_those_of_the_settings() -> None:
    assert import_module("shop.settings.base").STORES == STORE_VARIABLES


def environment(**changes: str) -> dict[str, str]:
    """Ours without the stores of the test session, as a new user's would be."""
    kept = {name: value for name, value in os.environ.items() if name not in STORE_VARIABLES}
    return kept | changes


def processes_of(var: Path) -> list[int]:
    """Every process with this SHOP_VAR or at work below it, wherever it hangs in the tree."""
    mark = f"SHOP_VAR={var}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Valkey overwrites its environment with its title, but its folder is there.
            home = (folder / "cwd").readlink()
            if home.is_relative_to(var) or mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def start(var: Path, port: object, *wrapper: str, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*wrapper, sys.executable, "tools/demo.py"],
        cwd=ROOT,
        env=environment(SHOP_VAR=str(var), PORT=str(port), **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextmanager
def running(var: Path, port: int, **changes: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo that has said where it serves, and all that it said until then."""
    with start(var, port, **changes) as supervisor:
        try:
            assert supervisor.stdout is not None
            said = ""
            for line in supervisor.stdout:
                said += line
                if "Ctrl-C" in line:
                    break
            assert "Ctrl-C" in said, said
            yield supervisor, said
        finally:
            supervisor.kill()


def refused(var: Path, port: object = "") -> str:
    """What a demo says that cannot start."""
    with start(var, port) as demo:
        said, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert "Traceback" not in said
    assert processes_of(var) == []
    return said


def embedded(var: Path) -> dict[str, str]:
    lines = (var / "embedded.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_every_end_leaves_nothing_and_the_next_start_has_the_data(
    tmp_path: Path, port: int
) -> None:
    for number, how in enumerate([signal.SIGKILL, signal.SIGINT]):
        with running(tmp_path, port, REDLOCK=str(number % 2)) as (supervisor, said):
            assert f"http://{HOST}:{port}/" in said
            assert ("Filling the shop" in said) == (number == 0), said
            assert "password" in said
            with urllib.request.urlopen(f"http://{HOST}:{port}/") as page:
                assert page.status == 200
            assert (tmp_path / "demo.url").read_text() == f"http://{HOST}:{port}/\n"
            # Supervisor, gunicorn and two, worker and two, consumer, beat, stores.
            expected = 11 + (5 if number % 2 else 0)
            until(lambda n=expected: len(processes_of(tmp_path)) == n, "the family", 60)
            urls = embedded(tmp_path)
            assert urls.get("REDLOCK_URLS", "").count("redis://") == (5 if number % 2 else 0)
            with redis.Redis.from_url(urls["REDIS_URL"]) as connection:
                assert connection.incr("starts") == number + 1
                # Appended to disk once a second; SIGKILL comes after that.
                until(lambda c=connection: c.info()["aof_pending_bio_fsync"] == 0, "the file")
            os.killpg(supervisor.pid, how)
            if how is not signal.SIGKILL:
                assert supervisor.wait(60) == 0
                assert not (tmp_path / "demo.url").exists()
            until(lambda: processes_of(tmp_path) == [], "their end", 60)


# A test run may have been started with nohup itself.
@pytest.mark.parametrize("wrapper", [["env", "--default-signal=HUP"], ["nohup"]])
def test_terminal_that_closes_during_the_start(
    wrapper: list[str], tmp_path: Path, port: int
) -> None:
    """The addresses do not stay, where `manage.py` would look for them. With nohup it goes on."""
    with start(tmp_path, port, *wrapper) as demo:
        until((tmp_path / "embedded.env").exists, "the stores", 60)
        os.killpg(demo.pid, signal.SIGHUP)
        if wrapper == ["nohup"]:
            until(lambda: (tmp_path / "static").exists() or demo.poll(), "the next step", 60)
            assert demo.poll() is None
            demo.terminate()
        demo.communicate(timeout=60)
    assert not (tmp_path / "embedded.env").exists()


def test_process_that_ends_starts_again(capfd: pytest.CaptureFixture[str]) -> None:
    """`worker` ends at once, three times, and leaves a child behind each time."""
    said = ""

    def children() -> list[str]:
        nonlocal said
        said += capfd.readouterr().out
        return re.findall(r"worker   \| (\d+)", said)

    web = Part("web", SHELL, "-c", "sleep 1000")
    worker = Part("worker", SHELL, "-c", "sleep 1000 & echo $!; exit 3")
    try:
        for _ in range(3):
            worker.process.wait()
            web.restart_if_ended()
            worker.restart_if_ended()
        assert web.process.poll() is None, "another process is not affected"
    finally:
        stop([web, worker])
    until(lambda: len(children()) >= 3, "the lines")
    assert "web ended" not in said
    assert said.count("worker ended with exit code 3: it starts again.") == 3
    until(lambda: not any(Path("/proc", child).exists() for child in children()), "no child left")
    assert web.process.poll() is not None


@patch("tools.supervisor.STOP_SECONDS", 120.0)  # the process may be slow
def test_second_ctrl_c_ends_the_wait(capfd: pytest.CaptureFixture[str]) -> None:
    """The process stays after SIGTERM, and sends the Ctrl-C itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    script = "trap 'kill -INT $PPID' TERM; echo ready; while :; do sleep 0.05; done"
    web = Part("web", SHELL, "-c", script)
    try:
        until(lambda: "ready" in capfd.readouterr().out, "the trap")
        with pytest.raises(KeyboardInterrupt):
            stop([web])
    finally:
        signal.signal(signal.SIGINT, before)
    assert web.process.poll() == -signal.SIGKILL


def test_demo_that_cannot_start_says_why(tmp_path: Path, port: int) -> None:
    with socket.socket() as other:
        other.bind((HOST, port))
        other.listen()
        assert f"make demo PORT={port + 1}" in refused(tmp_path, port)
    for text in ("65536", "٣"):
        assert "is not a port" in refused(tmp_path, text)
    with (tmp_path / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert "running already" in refused(tmp_path, port)
    assert "cannot write" in refused(tmp_path / "demo.lock" / "var", port)


def test_data_are_in_the_folder_whatever_its_name(tmp_path: Path) -> None:
    """`make demo PORT=` exports an empty PORT, which means the default."""
    folder = tmp_path / "c++ #1 50%41 a?b"
    script = "from django.conf import settings; print(settings.DATABASES['default']['NAME'])"
    env = environment(SHOP_VAR=str(folder), PORT="")
    printed = programs.output(sys.executable, "-c", script, cwd=ROOT, env=env)
    assert printed.strip() == str(folder / "shop.sqlite3")


def test_relative_folder_is_the_same_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor took it from the folder of its caller, its processes from the project's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_VAR", "data")
    monkeypatch.setenv("PORT", "none")
    monkeypatch.setattr(demo, "exit_on_signals", lambda: None)
    with pytest.raises(SystemExit, match="PORT=none is not a port"):
        demo.main()
    assert os.environ["SHOP_VAR"] == str(tmp_path / "data")
