"""The tutorial of the library: its blocks run from the wheel, in an empty folder."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from devservers import HOST, reserve_port
from devservers.faults.waiting import until
from tests import programs
from tests.docs.pages import BLOCKS, ROOT, Block, without_values

PAGE = "docs/library/tutorial.md"
MINUTES = 5
"""From the empty folder to the last line of the page."""
WRITES = "write_report()"


class Reader:
    """Follows the page from top to bottom in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.blocks = [block for block in BLOCKS if block.page == PAGE]
        self.running: list[subprocess.Popen[str]] = []
        self.env = {
            "HOME": str(folder),
            "PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }

    def next(self, language: str, part: str = "") -> Block:
        """Return the next block of the page, which must be of this kind."""
        block = self.blocks.pop(0)
        assert (block.language, part in block.code) == (language, True), block
        return block

    def start(self, part: str = "", **replaced: str) -> subprocess.Popen[str]:
        """Start the next shell block."""
        code = self.next("sh", part).code
        for old, new in replaced.items():
            assert old in code
            code = code.replace(old, new)
        if (self.folder / ".venv").exists():
            code = f". .venv/bin/activate\n{code}"
        started = subprocess.Popen(
            ["bash", "-ec", code],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that `stop` reaches what the shell started
        )
        self.running.append(started)
        return started

    def run(self, part: str = "") -> str:
        """Run the next shell block to its end and return its output."""
        started = self.start(part)
        output, _ = started.communicate(timeout=60 * MINUTES)
        assert started.returncode == 0, output
        return output

    def write(self, file: str, mode: str) -> None:
        """Write the next Python block to a file."""
        with (self.folder / file).open(mode) as open_file:
            open_file.write("\n" + self.next("python").code)

    def compare(self, output: str) -> None:
        """Check that the output has the lines that the page shows next."""
        for line in self.next("text").code.splitlines():
            assert without_values(line) in without_values(output), output


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    source = tmp_path / "django-distributed-locks"
    for package in ("locking", "shop"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    reader = Reader(tmp_path)
    yield reader
    for started in reader.running:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def check_wheel(wheel: Path) -> None:
    """Expect the library, without the shop beside it, and no requirement but Django."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        requires = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.M)
    expected = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "locking").rglob("*.*")
        if file.suffix in (".py", ".lua", ".html", ".mo", ".typed")
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert [one for one in requires if "extra" not in one] == ["django>=5.2"]


def read_until(started: subprocess.Popen[str], part: str) -> str:
    """Return the output of a running block up to the line with `part`."""
    assert started.stdout
    lines = []
    for line in started.stdout:
        lines.append(line)
        if part in line:
            break
    assert part in lines[-1], lines
    return "".join(lines)


def is_open(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection((HOST, port), timeout=5):
        return True
    return False


def break_in_the_admin(address: str, user: str, password: str, name: str) -> None:
    """Follow step 5 and 6 of the page: sign in, see the lock, break it."""
    page, browser = f"{address}/admin/locking/heldlock/", requests.Session()

    def read(url: str, **form: str) -> str:
        """Return a page, or what the server replies to its form."""
        text = browser.get(url, timeout=60).text
        if form:
            fields = re.findall(r'name="(csrfmiddlewaretoken|token|next)" value="([^"]*)"', text)
            text = browser.post(url, {**dict(fields), **form}, timeout=60).text
        return text

    listed = read(
        f"{address}/admin/login/?next=/admin/locking/heldlock/", username=user, password=password
    )
    for title in ("Holder", "Since", "Time left", "Waiters", "Token", name):
        assert title in listed, title
    (link,) = re.findall(r'href="/admin/locking/heldlock/([^"]+/change/)"', listed)
    broken = read(page + link, confirm=name)
    assert f"Lock {name} was broken. Its former holder may still be running." in broken


def test_tutorial_works_from_the_wheel(reader: Reader) -> None:
    began = time.monotonic()
    reader.run("pip wheel")
    check_wheel(next(reader.folder.glob("wheels/*.whl")))
    reader.run("startproject")
    reader.write("mysite/settings.py", "a")
    assert "no issues" in reader.run("createsuperuser")
    reader.write("mysite/reports.py", "x")

    holder = reader.start(WRITES)
    reader.compare(read_until(holder, "under grant"))
    reader.compare(reader.run("manage.py locks"))
    reader.compare(reader.run(WRITES))

    port, mark = reserve_port()
    with mark:
        reader.start("runserver", **{"127.0.0.1:8000": f"{HOST}:{port}"})
        until(lambda: is_open(port), "the server of step 5", 60)
        break_in_the_admin(f"http://{HOST}:{port}", "li", "tutorial", "report:2026")
    took = time.monotonic() - began
    output, _ = holder.communicate("\n", timeout=60)
    reader.compare(output)

    again = reader.start(WRITES)
    output, _ = again.communicate("\n", timeout=60)
    reader.compare(output)
    assert reader.blocks == [], "a block of the page was not run"
    run_example(reader)
    print(f"a held lock was seen and released in the admin after {took:.0f} s")  # noqa: T201
    assert took < 60 * MINUTES


def run_example(reader: Reader) -> None:
    """Run the project of one file from the wheel; without the lock it must lose updates."""
    example = [reader.folder / ".venv/bin/python", ROOT / "examples/one_file.py"]
    printed = programs.output(*example, cwd=reader.folder, env=reader.env)
    without, locked = re.findall(r"lock: (\d+) left of 100", printed)
    assert int(without) > 0
    assert int(locked) == 0
