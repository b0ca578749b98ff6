"""The wheel is the library alone, and needs only Django; the library's tutorial uses it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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
