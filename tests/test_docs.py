"""The docs match the code: links, files, names and settings exist.

Their code blocks are tested in tests/docs/.
"""

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import patch

import pytest

import locking
from loadtest.cli import scenario
from loadtest.kernel import marked
from loadtest.scenarios import export
from shop.purchase.place_order import RECOVERY
from tests.docs.pages import CURRENT, DOCS, PAGES, ROOT, page_id, without_blocks
from tests.fault_rows import SUITE, rows
from tools.library_reference import LOCKS, NAMES, PARTS, REFERENCE, capabilities

NO_MODULES = {"locking.release_lock", "locking.switch_lock", "loadtest.add_labrun"}
"""Names of permissions."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def anchors(page: Path) -> set[str]:
    text = without_blocks(page.read_text())
    headings = re.findall(r"^#+ (.*)", text, re.M)
    own = set(re.findall(r'<a id="([^"]+)">', text))
    return own | {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


LINK = re.compile(r"""\]\(([^)#\s]*)(?:#([^)]*))?\)|(?:src|srcset|href)="([^"#]*)(?:#([^"]*))?\"""")


def dead_links(page: Path, text: str) -> list[str]:
    """Return the relative links whose page or heading does not exist."""
    dead = []
    for found in LINK.findall(without_blocks(text)):
        target, anchor = found[0] or found[2], found[1] or found[3]
        linked = page.parent / target if target else page
        is_external = "://" in target
        if not is_external and not (linked.exists() and (not anchor or anchor in anchors(linked))):
            dead.append(f"{target}#{anchor}")
    return dead


def test_links_lead_to_pages_and_headings() -> None:
    found = {page_id(page): dead_links(page, page.read_text()) for page in PAGES}
    assert {page: links for page, links in found.items() if links} == {}


def test_control_dead_links_are_found() -> None:
    text = '[a](no.md) [b](README.md#no) <img src="no.svg"> [c](README.md) [d](README.md#try-it)'
    assert dead_links(ROOT / "README.md", text) == ["no.md#", "README.md#no", "no.svg#"]


def named(pattern: str) -> dict[str, str]:
    """Return what the pattern finds on the current pages, each with one of its pages."""
    return {
        found: page_id(page) for page in CURRENT for found in re.findall(pattern, page.read_text())
    }


def test_named_files_exist() -> None:
    folders = "deploy|devservers|docs|inventory|loadtest|locking|requirements|shop|tests|tools"
    folders += "|waiting_room"
    tests = ROOT / "tests"
    for path, page in named(rf"(?<![\w/.])((?:{folders})/[\w./*-]*[\w*/])").items():
        assert [*ROOT.glob(path), *tests.glob(path)], f"{page}: {path}"
    for path, page in named(r"`(test_[\w*]+\.py)`").items():
        assert [*tests.rglob(path)], f"{page}: {path}"


def test_dotted_names_exist() -> None:
    packages = "locking|shop|inventory|loadtest|devservers|waiting_room"
    with patch.dict(os.environ):  # shop.settings.production sets defaults there
        for name in named(rf"`((?:{packages})(?:\.[a-z]\w*)+(?:\.[A-Z]\w*)?)`").keys() - NO_MODULES:
            resolve_name(name)


def test_every_environment_variable_is_documented() -> None:
    modules = (ROOT / "shop" / "settings").glob("*.py")
    settings = "".join(module.read_text() for module in modules)
    names = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', settings))
    assert {"DATABASE_URL", "SECRET_KEY"} <= names
    page = text_of("reference/settings.md")
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_every_system_check_of_the_shop_is_documented() -> None:
    """Those of the library are in a generated part."""
    sources = "".join(file.read_text() for file in (ROOT / "shop").rglob("*.py"))
    ids = set(re.findall(r"\bshop\.[EW]0\d\d\b", sources))
    ids |= {f"shop.{number}" for number in re.findall(r'"(E0\d\d)"', sources)}
    assert {"shop.E001", "shop.W001"} <= ids
    assert {name for name in ids if name not in text_of("reference/settings.md")} == set()


def glossary() -> list[tuple[str, str]]:
    """Return the terms of the glossary with their names in code."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \|", text_of("reference/glossary.md"), re.M)
    return [(term, code) for term, code in rows if term not in ("term", "---")]


def test_glossary_defines_each_term_once() -> None:
    terms = [term for cell, _ in glossary() for term in cell.split(", ")]
    assert len(terms) > 30
    assert {term for term in terms if terms.count(term) > 1} == set()


def test_glossary_names_existing_code() -> None:
    sources = [
        file
        for package in ("locking", "inventory", "shop", "waiting_room", "loadtest", "verification")
        for file in (ROOT / package).rglob("*.py")
    ]
    words = set(re.findall(r"\w+", "".join(file.read_text() for file in sources)))
    words |= {file.stem for file in sources} | {file.parent.name for file in sources}
    names = [name for _, code in glossary() for name in re.findall(r"`-*([\w.]+)`", code)]
    assert len(names) > 30
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
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "locking/testing").glob("*.py")]
    tests = set(re.findall(r"def (test_\w+)\(", "".join(file.read_text() for file in files)))
    pages = named(r"`(test_\w+)`")
    assert {name: page for name, page in pages.items() if name not in tests} == {}


def decisions() -> dict[str, str]:
    """Return the status of each decision, as it says itself, by file name."""
    status = re.compile(r"^# \d+\. .*\n\nStatus: (\w+), 20\d\d-\d\d-\d\d")
    pages = {page.name: page.read_text() for page in (DOCS / "adr").glob("0*.md")}
    found = {name: status.match(text) for name, text in pages.items()}
    assert [name for name, line in found.items() if line is None] == []
    return {name: line[1] for name, line in found.items() if line}


def test_decisions_are_listed_with_their_status() -> None:
    rows = re.findall(r"^\| \[\d+\]\((.*?)\) \|.*\| (\w+)", text_of("adr/README.md"), re.M)
    assert len(rows) > 10
    assert dict(rows) == decisions()


def test_every_row_has_a_test_and_is_documented() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    marked = set(re.findall(r'mark\.faults\([^)]*\brow="?(\w+)', sources))
    assert marked | {str(facts["row"]) for facts in SUITE.values()} == set(rows())


def cells_of(text: str) -> set[tuple[str, str, str]]:
    """Return lock, fault and result of the tables on what each lock survives."""
    found = set()
    for table in re.findall(r"(?:^\| .*\n)+", text, re.M):
        heading, *lines = [line[2:-2].split(" | ") for line in table.splitlines()]
        if heading[0] == "lock":
            for line in lines:
                found |= {(line[0], *pair) for pair in zip(heading, line, strict=True)}
    return found


def test_readme_repeats_what_each_lock_survives() -> None:
    shown = cells_of((ROOT / "README.md").read_text())
    assert len(shown) > 20
    assert shown <= cells_of(text_of("measurements/survival.md"))


SCENARIOS = scenario.COMMAND
GENERATED = [
    *((page, part, make) for part, (page, make) in PARTS.items()),
    (DOCS / "reference/lab.md", SCENARIOS.part, lambda: SCENARIOS.markdown(export.recorded())),
]


@pytest.mark.parametrize(("page", "part", "make"), GENERATED)
def test_generated_part_is_current(page: Path, part: str, make: Callable[[], str]) -> None:
    before, after = marked.around(page, part)
    assert page.read_text() == before + make() + after, "run its generator: see CONTRIBUTING.md"


def test_every_public_name_is_described() -> None:
    text = REFERENCE.read_text()
    missing = [name for name in locking.__all__ if f"`{name}`" not in text and name not in NAMES]
    assert missing == []


def test_page_on_which_lock_quotes_the_measurements() -> None:
    page = (ROOT / "docs/library/choose-a-lock.md").read_text()
    measured = (ROOT / "docs/measurements/locks.md").read_text()
    for lock in (r"\*\*redis\*\*", "redis-py Lock"):
        found = re.search(rf"^\| {lock} \| \d+ \| ([\d.]+) \| (\d+)", measured, re.M)
        assert found
        assert found[1] in page, "the ratio to the floor"
        assert f"{found[2]} ms" in " ".join(page.split()), "the wave"


def test_texts_of_the_troubleshooting_page_are_in_the_code() -> None:
    page = (ROOT / "docs/library/troubleshooting.md").read_text()
    texts = [row.removeprefix("| `") for row in re.findall(r"^\| `.*?`(?= \|)", page, re.M)]
    assert len(texts) > 15
    constants = "\0".join(
        str(node.value)
        for file in (ROOT / "locking").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
    )
    known = re.sub(r"%[sdr]|%\.?\d*[fg]", "\0", constants)
    parts = {part.strip(" `") for text in texts for part in re.split("…", text)}
    assert {part for part in parts if part not in known} == set()


def test_readme_of_the_wheel_stands_alone() -> None:
    text = (ROOT / "locking/README.md").read_text()
    assert re.findall(r"\]\((?!https://)", text) == [], "dead on the package index"


def test_summary_agrees_with_the_tested_behaviour() -> None:
    """docs/reference/locks.md lists what the fault tests prove, by hand and in more words."""
    rows = re.findall(r"^\| (.*) \|$", LOCKS.read_text().partition("## Behaviour")[2], re.M)
    cells = {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows}
    aliases = [alias.strip() for alias in cells["failure"]]
    for alias, declared in capabilities().items():
        assert declared.summary.endswith(".")
        assert declared.exclusion != "machines" or declared.expires or declared.session_bound, alias
        if alias in aliases:
            column = aliases.index(alias)
            killed = cells["holder killed: next grant"][column]
            assert (killed == "after the lease") == (not declared.session_bound)
            jump = cells["clock of the store jumps"][column]
            assert jump.startswith("two holders") == declared.expires
            failover = cells["failover to an older replica"][column]
            assert (failover == "not affected") == declared.survives_minority
            is_kept = failover == "not affected" and declared.fencing
            assert ("tokens grow" in failover or is_kept) == declared.tokens_outlive_failover
