"""Help, suggestions and colours of all commands."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, get_commands, load_command_class

from inventory.management.console import HelpfulCommand, Parser
from locking.management.base import LockCommand

ROOT = Path(__file__).parents[1]
PACKAGES = ("locking", "inventory", "shop", "loadtest", "verification")
COMMANDS = sorted(name for name, app in get_commands().items() if app in PACKAGES)


def parser_of(name: str) -> Any:
    command: Any = load_command_class(get_commands()[name], name)
    command._called_from_command_line = True
    return command.create_parser("manage.py", name)


def all_parsers() -> list[Any]:
    """Return the parsers of all commands and of their subcommands."""
    found = []
    for name in COMMANDS:
        found.append(parser := parser_of(name))
        for action in parser._subparsers._group_actions if parser._subparsers else ():
            found += action.choices.values()
    return found


def test_every_command_is_helpful() -> None:
    assert {"lab", "lock_policy", "locks", "audit_stock", "seed"} <= set(COMMANDS)
    for name in COMMANDS:
        command = load_command_class(get_commands()[name], name)
        is_library = get_commands()[name] == "locking"  # it has no need of the shop's comfort
        assert isinstance(command, LockCommand if is_library else HelpfulCommand), name
    assert len(all_parsers()) >= len(COMMANDS) + 10


def test_help_describes_every_option_within_80_columns_and_its_example_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for parser in all_parsers():
        assert max(map(len, parser.format_help().splitlines())) <= 80, parser.prog
        undescribed = [action.dest for action in parser._actions if not action.help]
        assert undescribed in ([], ["action"]), parser.prog
        if parser.epilog:
            name, *arguments = shlex.split(parser.epilog.removeprefix("Example: manage.py "))
            parser_of(name).parse_args(arguments)  # exits otherwise


@pytest.mark.parametrize("arguments", [["lab"], ["lab", "endure"]])
def test_missing_arguments_print_the_help_and_an_example(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_of(arguments[0]).parse_args(arguments[1:])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert "options:" in printed
    assert "Example: manage.py" in printed
    assert "required" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lab", "rnu"], "Unknown subcommand 'rnu'. Did you mean 'run'? Choose from bench, "),
        (["lab", "bench", "lokcs"], "Unknown subject 'lokcs'. Did you mean 'locks'? "),
        (["lab", "run", "--store=mariabd"], "Unknown --store 'mariabd'. Did you mean 'mariadb'"),
    ],
)
def test_mistyped_names_get_a_suggestion(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser_of(arguments[0]).parse_args(arguments[1:])
    printed = capsys.readouterr().err
    assert message in printed
    assert "options:" not in printed  # a page of help would hide the message


@pytest.mark.parametrize(("environ", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_in_a_terminal(environ: dict[str, str], is_coloured: bool, tmp_path: Path) -> None:
    """An error is red in a terminal, unless NO_COLOR is set."""
    main, terminal = pty.openpty()
    command = [sys.executable, "manage.py", "after_restore", "redis"]
    kept = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    kept["DATABASE_URL"] = f"sqlite:///{tmp_path}/empty.sqlite3"
    subprocess.run(command, cwd=ROOT, env=kept | environ, stdout=terminal, stderr=terminal)
    os.close(terminal)
    printed = os.read(main, 10_000).decode()
    os.close(main)
    assert "The lock policy cannot be read" in printed
    assert ("\x1b[" in printed) == is_coloured


def test_errors_raise_when_python_code_calls_the_command() -> None:
    parser = Parser(prog="x", called_from_command_line=False)
    parser.add_argument("what", choices=["one", "two"])
    with pytest.raises(CommandError, match="Did you mean 'two'") as refused:
        parser.parse_args(["tow"])
    assert refused.value.returncode == 2
