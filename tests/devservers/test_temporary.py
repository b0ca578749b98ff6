"""A temporary directory is removed after the end of its owner, and never before."""

import os
import subprocess
import sys
import tempfile

import pytest

from devservers import Redis
from devservers.faults.waiting import until
from devservers.process import with_parent_death_signal
from devservers.temporary import temporary_directory

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


def sweep():
    temporary_directory("sweep").rmdir()


def test_directory_of_a_killed_owner_is_removed(owner, temporary):
    left = temporary / owner.stdout.readline().strip()
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


def test_other_directories_stay(temporary):
    mine = temporary_directory("mine").name
    here = mine.split("-")[2].partition(".")[0]
    others = [f"seckill-redis-{int(here) + 1}.999999999-abc", f"seckill-{here}.x", mine]
    ended = f"seckill-redis-{here}.999999999-abc"
    for name in (*others, ended):
        (temporary / name).mkdir(exist_ok=True)
    sweep()
    assert sorted(os.listdir(temporary)) == sorted(others)
