"""Errors, suggestions and tables of the commands."""

import pytest
from django.core.management import CommandError

from inventory.management.console import Parser, table


def test_errors_raise_when_python_code_calls_the_command() -> None:
    parser = Parser(prog="x", called_from_command_line=False)
    parser.add_argument("what", choices=["one", "two"])
    with pytest.raises(CommandError, match="Did you mean 'two'") as refused:
        parser.parse_args(["tow"])
    assert refused.value.returncode == 2


ROWS = [["redis", "12", "1.5 ms", "ok"], ["database", "7", "", "broken, and why"]]
HEADINGS = ("lock", "units", "wait\np50", "verdict")


def test_table_aligns_numbers_and_leaves_no_trailing_space() -> None:
    assert table(HEADINGS, ROWS).splitlines() == [
        "                   wait",
        "lock      units     p50  verdict",
        "────────  ─────  ──────  ───────────────",
        "redis        12  1.5 ms  ok",
        "database      7          broken, and why",
    ]


def test_wide_table_continues_below_with_its_first_column() -> None:
    blocks = table(HEADINGS, ROWS, width=30).split("\n\n")
    assert len(blocks) == 2
    assert all(block.splitlines()[3].startswith("redis ") for block in blocks)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 30
    assert table(HEADINGS, ROWS, width=40) == table(HEADINGS, ROWS)
