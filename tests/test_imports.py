"""The rooms of the house: imports go one way, and `locking` could be lifted out alone."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each may import itself and those after it.
ROOMS = ("loadtest", "shop", "inventory", "locking")
LOCKING_NEEDS = {
    "MySQLdb",
    "celery",
    "django",
    "django_celery_beat",
    "hiredis",
    "kazoo",
    "prometheus_client",
    "redis",
}


def imports(source: str, package: str) -> Iterator[str]:
    """The full name of all that a module of the package imports, also inside its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package itself, each further dot the one above.
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported_by(file: Path) -> Iterator[str]:
    return imports(file.read_text(), ".".join(file.relative_to(ROOT).parent.parts))


def imported_rooms(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_by(file)}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    assert modules(room), f"{room} is empty"
    forbidden = set(ROOMS[: ROOMS.index(room)])
    broken = {
        str(file.relative_to(ROOT)): found
        for file in modules(room)
        if (found := imported_rooms(file) & forbidden)
    }
    assert broken == {}


def test_locking_imports_nothing_of_the_project() -> None:
    allowed = LOCKING_NEEDS | sys.stdlib_module_names | {"locking"}
    foreign = {
        str(file.relative_to(ROOT)): found
        for file in modules("locking")
        if (found := imported_rooms(file) - allowed)
    }
    assert foreign == {}


def test_only_the_lab_names_the_recipes() -> None:
    """They are textbook locks with known flaws; no setting may name one, not even as a string."""
    offenders = [
        str(file.relative_to(ROOT))
        for room in ROOMS[1:]
        for file in modules(room)
        if "loadtest.recipes" in file.read_text()
    ]
    assert offenders == []


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("import shop.orders", "locking", ["shop.orders"]),
        ("def f():\n    from shop import orders", "locking", ["shop.orders"]),
        ("from . import base", "locking.backends", ["locking.backends.base"]),
        ("from ..lock import Lock", "locking.backends", ["locking.lock.Lock"]),
        ("from .. import models", "locking.backends", ["locking.models"]),
        ("if TYPE_CHECKING:\n    import loadtest", "shop", ["loadtest"]),
    ],
)
def test_the_walk_finds_every_kind_of_import(
    source: str, package: str, expected: list[str]
) -> None:
    assert list(imports(source, package)) == expected
