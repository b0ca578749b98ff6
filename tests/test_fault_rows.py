"""Each row of docs/reference/faults.md has a test, and each test of the fault suite a row."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.fault_rows import SUITE, rows

TESTS = Path(__file__).resolve().parent
NAMED_FOR_A_ROW = re.compile(r"test_(?:row_)?((?<=row_)\d+|f\d)_")


def marked_rows() -> Iterator[str]:
    """Yield the rows of all markers, also of those in the parameters of a test."""
    for path in TESTS.rglob("*.py"):
        for test in ast.walk(ast.parse(path.read_text())):
            if isinstance(test, ast.FunctionDef):
                calls = [node for one in test.decorator_list for node in ast.walk(one)]
                rows = {
                    str(ast.literal_eval(word.value))
                    for call in calls
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.faults"
                    for word in call.keywords
                    if word.arg == "row"
                }
                if named := NAMED_FOR_A_ROW.match(test.name):
                    assert rows == {named[1].upper()}, f"{test.name} is named for another row"
                yield from rows


def test_every_row_has_a_test_and_is_documented() -> None:
    assert {*marked_rows(), *(str(facts["row"]) for facts in SUITE.values())} == set(rows())
