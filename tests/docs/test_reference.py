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
from tools.library_reference import NAMES, PARTS, REFERENCE


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
