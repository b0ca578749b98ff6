"""The command line of all management commands: help, suggestions and colours."""

import os
import re
import sys
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser

from locking.exceptions import unknown
from locking.management.base import LockCommand

_MISTYPED = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)")


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


def add_subcommands(parser: ArgumentParser, dest: str = "action") -> Any:
    """Return the object whose `add_parser` adds a subcommand."""
    return parser.add_subparsers(
        dest=dest, required=True, metavar="SUBCOMMAND", parser_class=Parser
    )
