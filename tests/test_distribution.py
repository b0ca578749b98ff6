"""The wheel: the library alone, which needs only Django."""

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("django", "asgiref", "sqlparse")
PROJECT = """
import sys

sys.path[:0] = [{site!r}]
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "locking"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}}}}},
    USE_TZ=True,
    SECRET_KEY="x",
)
django.setup()
"""
USE = """
from django.core.management import call_command

call_command("check")
call_command("migrate", verbosity=0)

import locking
from locking import lock

assert locking.__file__.startswith({site!r}), locking.__file__
with lock("invoice:42", timeout=2) as lease:
    assert lease.token > 0
call_command("lock_policy", "show")
call_command("locks")
extras = {{"celery", "prometheus_client", "redis", "hiredis", "kazoo", "MySQLdb", "pytest"}}
assert not extras & set(sys.modules), extras & set(sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because setuptools writes to the source folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "LICENSE", "locking", "shop", "docs/library/README.md"):
        here, there = ROOT / name, source / name
        there.parent.mkdir(parents=True, exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__")
        if here.is_dir():
            shutil.copytree(here, there, ignore=ignored)
        else:
            shutil.copy(here, there)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", source, source]
    subprocess.run(command, check=True, timeout=300)
    (built,) = source.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and Django, without any other package."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in NEEDED:
        folder = Path(str(importlib.import_module(name).__file__)).parent
        (site / name).symlink_to(folder)
    return site


def run(site: Path, code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    script = PROJECT + code
    places = {"site": str(site), "database": str(tmp_path / "db.sqlite3")}
    # -S: without the packages of this environment.
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", script.format(**places)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_wheel_contains_the_library_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        requires = [
            line.partition(": ")[2]
            for line in archive.read(metadata).decode().splitlines()
            if line.startswith("Requires-Dist")
        ]
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "locking",
        "django_distributed_locks",
    }
    in_wheel = {Path(name) for name in names if name.startswith("locking/")}
    expected = {
        file.relative_to(ROOT)
        for file in (ROOT / "locking").rglob("*.*")
        if file.suffix in (".py", ".lua", ".html", ".mo", ".typed")
    }
    assert in_wheel == expected
    assert [one for one in requires if "extra" not in one] == ["django>=5.2"]


def test_library_needs_only_django(site: Path, tmp_path: Path) -> None:
    done = run(site, USE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "locking.W001" in done.stderr, "without LOCKS, the check says what the locks exclude"


def test_a_package_outside_django_is_missing(site: Path, tmp_path: Path) -> None:
    """The control: the environment of the test above has no extra."""
    done = run(site, "import celery", tmp_path)
    assert "No module named 'celery'" in done.stderr
