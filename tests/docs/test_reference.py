"""The generated parts of the docs are current, and the reference of the library is complete."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import locking
from loadtest.cli import scenario
from loadtest.kernel import marked
from loadtest.scenarios import export
from tests.docs.pages import ROOT
from tools.library_reference import LOCKS, NAMES, PARTS, REFERENCE, capabilities


def scenarios() -> str:
    """Return the table of `lab scenario all --write`."""
    return scenario.COMMAND.markdown(export.recorded())


GENERATED = [
    *((page, part, make) for part, (page, make) in PARTS.items()),
    (ROOT / "docs/reference/lab.md", scenario.COMMAND.part, scenarios),
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


def test_every_backend_that_excludes_machines_frees_dead_holders() -> None:
    for alias, declared in capabilities().items():
        assert declared.summary.endswith(".")
        if declared.exclusion == "machines":
            assert declared.expires or declared.session_bound, alias
