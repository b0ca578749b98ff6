"""The docs match the code: links, files, names, commands, settings, metrics and alerts exist."""

import os
import re
import shlex
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import get_commands, load_command_class
from prometheus_client.metrics import MetricWrapperBase

import locking.metrics
import shop.administration.alerts
import shop.platform.metrics
from shop.purchase.place_order import RECOVERY

ROOT = Path(__file__).resolve().parents[1]
HISTORY = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs/adr").glob("*.md"))]
"""These name things that no longer exist."""
CURRENT = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests/README.md",
    *sorted(set((ROOT / "docs").rglob("*.md")) - set(HISTORY)),
]
NO_MODULES = {"locking.switch_lock", "loadtest.add_labrun"}
"""Names of permissions."""


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*CURRENT, *HISTORY], ids=page_id)
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_named_files_exist(page: Path) -> None:
    folders = "deploy|devservers|docs|inventory|loadtest|locking|requirements|shop|tests|tools"
    for path in re.findall(rf"(?<![\w/.])((?:{folders})/[\w./*-]*[\w*/])", page.read_text()):
        assert [*ROOT.glob(path), *(ROOT / "tests").glob(path)], path
    for name in re.findall(r"`(test_[\w*]+\.py)`", page.read_text()):
        assert [*(ROOT / "tests").rglob(name)], name


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_dotted_names_exist(page: Path) -> None:
    pattern = r"`((?:locking|shop|inventory|loadtest|devservers)(?:\.[a-z]\w*)+(?:\.[A-Z]\w*)?)`"
    with patch.dict(os.environ):  # shop.settings.production sets defaults there
        for name in set(re.findall(pattern, page.read_text())) - NO_MODULES:
            resolve_name(name)


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_documented_imports_work(page: Path) -> None:
    for line in re.findall(
        r"^    (from (?:locking|shop|inventory)\S* import .*)", page.read_text(), re.M
    ):
        exec(line, {})  # noqa: S102


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_commands_accept_the_documented_arguments(page: Path) -> None:
    """Whole lines of code are parsed; commands in running text only have to exist."""
    text = page.read_text()
    commands = get_commands()
    for name in re.findall(r"manage\.py (\w+)", text):
        assert name in commands, name
    for line in re.findall(r"^    .*manage\.py ([^#\n]*)", text, re.M):
        name, *arguments = shlex.split(line)
        command: Any = load_command_class(commands[name], name)
        command.create_parser("manage.py", name).parse_args(arguments)


def test_every_environment_variable_is_documented() -> None:
    modules = (ROOT / "shop" / "settings").glob("*.py")
    settings = "".join(module.read_text() for module in modules)
    names = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', settings))
    assert {"DATABASE_URL", "SECRET_KEY"} <= names
    page = text_of("reference/settings.md")
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_every_system_check_is_documented() -> None:
    sources = "".join(
        file.read_text() for folder in ("locking", "shop") for file in (ROOT / folder).rglob("*.py")
    )
    numbers = set(re.findall(r"\bE0\d\d\b", sources))
    assert {"E001", "E020"} <= numbers
    assert numbers - set(re.findall(r"E0\d\d", text_of("reference/settings.md"))) == set()


def test_every_metric_and_alert_is_documented() -> None:
    metrics = [
        family.name + ("_total" if family.type == "counter" else "")
        for module in (locking.metrics, shop.administration.alerts, shop.platform.metrics)
        for metric in vars(module).values()
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
    ]
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy/alerts.yml").read_text())
    assert len(metrics) > 5
    assert len(alerts) > 5
    page = text_of("reference/metrics.md")
    assert {name for name in [*metrics, *alerts] if f"`{name}`" not in page} == set()


def glossary() -> list[tuple[str, str]]:
    """Return the terms of the glossary with their names in code."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \|", text_of("reference/glossary.md"), re.M)
    return [(term, code) for term, code in rows if term not in ("term", "---")]


def test_glossary_defines_each_term_once() -> None:
    terms = [term for cell, _ in glossary() for term in cell.split(", ")]
    assert len(terms) > 50
    assert {term for term in terms if terms.count(term) > 1} == set()


def test_glossary_names_existing_code() -> None:
    sources = [
        file
        for package in ("locking", "inventory", "shop", "loadtest")
        for file in (ROOT / package).rglob("*.py")
    ]
    words = set(re.findall(r"\w+", "".join(file.read_text() for file in sources)))
    words |= {file.stem for file in sources} | {file.parent.name for file in sources}
    names = [name for _, code in glossary() for name in re.findall(r"`-*([\w.]+)`", code)]
    assert len(names) > 50
    assert {name for name in names if not set(name.split(".")) <= words} == set()


def test_recovery_of_a_purchase_is_documented() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| `(\w+)` (\d+) \|", text_of("explanation/purchase.md"), re.M
    )
    assert [(error, refusal, int(status)) for error, refusal, status in rows] == [
        (error.__name__, found.refusal.__name__, found.refusal.status)
        for error, found in RECOVERY.items()
    ]


def test_named_tests_exist() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    for page in CURRENT:
        for name in re.findall(r"`(test_\w+)`", page.read_text()):
            assert f"def {name}(" in tests, f"{page.name}: {name}"
