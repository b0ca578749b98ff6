"""Folders and modules stay small."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "verification",
    "loadtest",
    "waiting_room",
    "shop",
    "inventory",
    "locking",
    "devservers",
)
MODULES_PER_FOLDER = 14
MODULES_AT_ROOT = {"locking": 16, "shop": 9, "loadtest": 4, "inventory": 12}
LINES_PER_MODULE = 400


def modules() -> list[Path]:
    return [
        file
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        if file.parent.name != "migrations"
    ]


def test_folders_hold_few_modules() -> None:
    sizes = Counter(str(file.parent.relative_to(ROOT)) for file in modules())
    too_large = {
        folder: size
        for folder, size in sizes.items()
        if size > MODULES_AT_ROOT.get(folder, MODULES_PER_FOLDER)
    }
    assert too_large == {}


def test_modules_are_short() -> None:
    lines = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in modules()}
    assert {name: count for name, count in lines.items() if count > LINES_PER_MODULE} == {}
