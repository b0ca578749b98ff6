"""The command line of all management commands: help, suggestions, colours and tables."""

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser

from locking.exceptions import unknown
from locking.management.base import LockCommand

Rows = Iterable[Sequence[str]]
GAP = "  "
_MISTYPED = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)")
_NUMBER = re.compile(r"[-+]?\d[\d.,/]*( ?\w{1,2}|%)?")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Parser(CommandParser):
    """A parser that prints its help if arguments are missing, and suggests names."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2, or raise CommandError if the command was called by Python code."""
        if found := _MISTYPED.fullmatch(message):
            option, name, known = found.groups()
            message = unknown(option.split("/")[0].lower(), name, re.findall(r"[\w-]+", known))
        if not self.called_from_command_line:
            raise CommandError(f"Error: {message}", returncode=2)
        (self.print_help if "are required" in message else self.print_usage)(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")


class HelpfulCommand(LockCommand):
    """A command with an example in its help and without colours if NO_COLOR is set."""

    example = ""
    """Arguments that show a common use."""
    has_json = False
    """Add the option --json."""
    suppressed_base_arguments = {
        *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback"),
        *("--no-color", "--force-color"),
    }

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return a `Parser`."""
        used = f"Example: manage.py {subcommand} {self.example}".rstrip()
        parser = super().create_parser(prog_name, subcommand, epilog=used, **kwargs)
        parser.__class__ = Parser  # Django has no setting for the class
        if self.has_json:
            parser.add_argument("--json", action="store_true", help="print one JSON object only")
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; https://no-color.org describes NO_COLOR."""
        if os.environ.get("NO_COLOR") and not options["force_color"]:
            options["no_color"] = True
        return super().execute(*args, **options)

    def print_table(self, headings: Sequence[str], rows: Rows) -> None:
        """Print a table that fits the terminal; a file gets whole lines."""
        width = get_terminal_size().columns if self.stdout.isatty() else 0
        self.stdout.write(table(headings, rows, width=width))


def add_subcommands(parser: ArgumentParser, dest: str = "action") -> Any:
    """Return the object whose `add_parser` adds a subcommand."""
    return parser.add_subparsers(
        dest=dest, required=True, metavar="SUBCOMMAND", parser_class=Parser
    )


def table(headings: Sequence[str], rows: Rows, *, width: int = 0) -> str:
    """Return a table: headings, a rule and a line per row, with numbers right-aligned.

    What does not fit into `width` columns continues below, with the first column repeated. 0 is no
    limit. A row may be shorter than the headings; an empty one separates groups.
    """
    depth = max(heading.count("\n") for heading in headings)
    filled = [[*row, *[""] * (len(headings) - len(row))] for row in rows]
    columns = [_column(depth, *cells) for cells in zip(headings, *filled, strict=True)]
    first, blocks = columns[0], [columns[:1]]
    for column in columns[1:]:
        used = sum(len(each[0]) + len(GAP) for each in blocks[-1]) + len(column[0])
        if width and used > width and blocks[-1] != [first]:
            blocks.append([first])
        blocks[-1].append(column)
    return "\n\n".join(
        "\n".join(GAP.join(line).rstrip() for line in zip(*block, strict=True)) for block in blocks
    )


def _column(depth: int, heading: str, *cells: str) -> list[str]:
    """Return the lines of a column, all of its width."""
    names = heading.split("\n")
    names = [""] * (depth + 1 - len(names)) + names
    sizes = [len(_COLOUR.sub("", cell)) for cell in (*names, *cells)]
    width = max(sizes)
    is_number = all(_NUMBER.fullmatch(cell) for cell in cells if cell)
    padded = []
    for cell, size in zip((*names, *cells), sizes, strict=True):
        space = " " * (width - size)
        padded.append(space + cell if is_number else cell + space)
    padded.insert(depth + 1, "─" * width)
    return padded
