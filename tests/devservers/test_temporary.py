"""A temporary directory is removed after the end of its owner, and never before."""

import os
import subprocess
import sys
import tempfile

import pytest

from devservers import Redis
from devservers.faults.waiting import until
from devservers.process import process_identity, with_parent_death_signal
from devservers.temporary import remove_abandoned, temporary_directory

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc, as does what it tests"
)
OWNER = (
    "from devservers import Redis;"
    "one = Redis(); one.start(); print(one.folder.name, flush=True); input()"
)


@pytest.fixture(autouse=True)
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


def test_directory_of_a_killed_owner_is_removed(owner, temporary):
    left = temporary / owner.stdout.readline().strip()
    remove_abandoned()
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


def test_process_with_a_reused_pid_is_not_the_owner(temporary):
    mine = temporary_directory("mine")
    started = process_identity(os.getpid()).rpartition(".")[2]
    before = temporary / mine.name.replace(f".{started}-", ".1-")
    before.mkdir()
    temporary_directory("next")
    assert mine.exists()
    assert not before.exists()


def test_other_directories_stay(temporary):
    here, pid, started = process_identity(os.getpid()).split(".")
    others = [f"seckill-redis-{int(here) + 1}.{pid}.1-abc", f"seckill-{here}.x", "seckill-redis-a"]
    for name in others:
        (temporary / name).mkdir()
    (temporary / f"seckill-redis-{here}.999999999.{started}-abc").mkdir()
    remove_abandoned()
    assert sorted(os.listdir(temporary)) == sorted(others)
