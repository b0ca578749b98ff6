"""Imports go one way: between the packages, between their layers, and never in a circle."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("verification", "loadtest", "waiting_room", "shop", "inventory", "locking")
"""Each may import itself and those after it; `devservers` imports none of them."""
LAYERS = {
    "locking": """
        exceptions fork failpoints models
        names caller threads refresh
        claims
        metrics
        backends
        lease
        conf
        handler
        policy
        single_flight idempotency
        jobs
        checks
        admin apps management
        testing
    """,
    "shop": """
        formats
        settings errors delivery
        platform models
        sales
        reservations
        catalogue
        orders
        payments
        mail
        purchase
        administration
        operations
        tasks management templatetags
        web
        urls admin apps celery wsgi
    """,
    "waiting_room": """
        tickets models
        store
        lottery
        service
        gate views mail
        admin urls tasks
        apps
    """,
    "loadtest": """
        kernel
        recipes models texts
        load
        charts
        bench
        scenarios
        game
        resilience
        cli
        web
        management apps __main__
    """,
    "verification": """
        histories protocols visitors
        interleavings torture soak
        cli
        management apps
    """,
}
"""By package: a module or folder may import itself and those on the lines above its own."""


def imports(source: str, package: str) -> Iterator[str]:
    """Yield the full name of everything that a module of the package imports, also in functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package itself, each further dot the one above.
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def imported(package: str) -> dict[str, set[str]]:
    """Return the full names of everything that each module of the package imports."""
    found = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        folder = ".".join(file.relative_to(ROOT).parent.parts)
        if file.parent.name != "migrations":
            module = folder if file.name == "__init__.py" else f"{folder}.{file.stem}"
            found[module] = set(imports(file.read_text(), folder))
    assert found, f"{package} is empty"
    return found


@cache
def import_graph(*packages: str) -> dict[str, set[str]]:
    """Return the modules of the packages that each of their modules imports when it runs."""
    names = {module: of for package in packages for module, of in imported(package).items()}

    def module_of(name: str) -> str:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name

    return {module: {*map(module_of, of)} - {module, ""} for module, of in names.items()}


def unit_of(module: str) -> str:
    """Return the module or folder at the root of its package; empty for the package itself."""
    return ([*module.split("."), ""])[1]


@pytest.mark.parametrize("package", [*PACKAGES, "devservers"])
def test_packages_import_only_those_below(package: str) -> None:
    above = set(PACKAGES if package == "devservers" else PACKAGES[: PACKAGES.index(package)])
    broken = {
        module: found
        for module, names in imported(package).items()
        if (found := {name.split(".")[0] for name in names} & above)
    }
    assert broken == {}


@pytest.mark.parametrize("package", LAYERS)
def test_layers_import_only_those_above_in_the_table(package: str) -> None:
    lines = enumerate(LAYERS[package].strip().splitlines())
    rank = {unit: number for number, line in lines for unit in line.split()}
    edges = {
        (unit_of(module), unit_of(name))
        for module, names in import_graph(package).items()
        for name in names
    }
    assert {unit_of(module) for module in imported(package)} - {""} == rank.keys()
    broken = {
        (package, unit, other)
        for unit, other in edges
        if unit and unit != other and (not other or rank[other] >= rank[unit])
    }
    assert broken == set()


@pytest.mark.parametrize("package", [*PACKAGES, "devservers"])
def test_no_package_imports_in_a_circle(package: str) -> None:
    try:
        TopologicalSorter(import_graph(package)).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_demo_does_not_import_the_lab() -> None:
    graph = import_graph("tools", "devservers", *PACKAGES)
    reached, new = set(), {"tools.demo"}
    while new:
        reached |= new
        new = set().union(*(graph[module] for module in new)) - reached
    assert {module for module in reached if module.startswith("loadtest")} == set()


FOUND = {
    "def f():\n    from shop import orders": "shop.orders",
    "from . import base": "locking.backends.base",
    "from ..lock import Lock": "locking.lock.Lock",
    "if TYPE_CHECKING:\n    import loadtest": "loadtest",
}


def test_every_kind_of_import_is_found() -> None:
    """The control."""
    assert {source: next(imports(source, "locking.backends")) for source in FOUND} == FOUND
