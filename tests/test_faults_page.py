"""docs/reference/faults.md has every test that is marked with a row, and every row has a test."""

import ast
import re
from pathlib import Path

from loadtest.kernel import marked
from tests.fault_page import PART
from tests.fault_rows import ROWS, SUITE

TESTS = Path(__file__).resolve().parent
NAMED_FOR_A_ROW = re.compile(r"test_(?:row_)?((?<=row_)\d+|f\d)_")
PAGE = TESTS.parent / "docs/reference/faults.md"


def rows_of(test: ast.FunctionDef) -> set[str]:
    """The rows of its markers, also of those in its parameters."""
    found = set()
    for decorator in test.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.faults":
                row = next(word.value for word in node.keywords if word.arg == "row")
                found.add(str(ast.literal_eval(row)))
    return found


def marked_tests() -> set[tuple[str, str]]:
    """(row, test) of all that are marked."""
    found = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            for one in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(one, ast.FunctionDef):
                    name = f"{path.relative_to(TESTS)}::{prefix}{one.name}"
                    rows = rows_of(one)
                    found |= {(row, name) for row in rows}
                    if named := NAMED_FOR_A_ROW.match(one.name):
                        assert rows == {named[1].upper()}, f"{name} is named for another row"
    for path in (TESTS.parent / "locking/testing").glob("contract*.py"):
        for cls in ast.parse(path.read_text()).body:
            for one in cls.body if isinstance(cls, ast.ClassDef) else []:
                if isinstance(one, ast.FunctionDef) and one.name in SUITE:
                    name = f"locking/testing/{path.name}::{cls.name}::{one.name}"
                    found.add((str(SUITE[one.name]["row"]), name))
    return found


def test_the_page_has_all_marked_tests_and_no_other() -> None:
    before, after = marked.around(PAGE, PART)
    table = PAGE.read_text().removeprefix(before).removesuffix(after)
    named = set(re.findall(r"^\| (\w+) \|.*`(\S+\.py::\S+)` \|", table, re.MULTILINE))
    assert named == marked_tests()
    assert {row for row, _ in named} == set(ROWS)
    assert "**failed**" not in table
