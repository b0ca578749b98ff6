"""Errors and suggestions of the commands."""

import pytest
from django.core.management import CommandError

from inventory.management.console import Parser


def test_errors_raise_when_python_code_calls_the_command() -> None:
    parser = Parser(prog="x", called_from_command_line=False)
    parser.add_argument("what", choices=["one", "two"])
    with pytest.raises(CommandError, match="Did you mean 'two'") as refused:
        parser.parse_args(["tow"])
    assert refused.value.returncode == 2
