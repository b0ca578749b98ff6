"""docs/faults.md names tests that exist, and every test that is named for a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOR_A_ROW = re.compile(r"::test_(?:row_)?((?<=row_)\d+|f\d)_")
PAGE = TESTS.parent / "docs" / "faults.md"


def names_in(path: Path) -> set[str]:
    """The names of a module's tests, with their classes'."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + one.name for one in inside if isinstance(one, ast.FunctionDef)}
    return {f"{path.relative_to(TESTS)}::{name}" for name in found}


def test_the_page_names_tests_that_exist_and_all_that_are_named_for_a_row() -> None:
    rows = re.findall(r"^\| (\w+) \|.*`(\S+\.py::\S+)` \|", PAGE.read_text(), re.MULTILINE)
    named = {test for _, test in rows}
    exist = {test for path in TESTS.rglob("*.py") for test in names_in(path)}
    assert len(named) > 50
    assert named - exist == set()
    for_a_row = {test: found[1] for test in exist if (found := FOR_A_ROW.search(test))}
    assert for_a_row.keys() - named == set()
    for row, test in rows:
        assert for_a_row.get(test, row.lower()) == row.lower(), test
