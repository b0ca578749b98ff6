"""The subcommands of `manage.py lab`; each module is one, found by its name.

A module's docstring is its help: a sentence, and an example. `add_arguments(parser)` declares its
options beside --json, which all have; `handle(terminal, **options)` runs it and returns the exit
code. PlanError means bad arguments (exit 2), ExperimentFailed an unexpected failure (exit 1).
"""

from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path


def add_numbers(parser: ArgumentParser, options: Iterable[tuple[str, float | None, str]]) -> None:
    """Add numeric options: name, default, meaning; a default that is a float allows fractions."""
    for name, default, meaning in options:
        text = meaning if default is None else f"{meaning} (default: {default})"
        kind = float if isinstance(default, float) else int
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)


def add_file(parser: ArgumentParser, name: str, meaning: str, metavar: str = "FILE") -> None:
    """Add an option that names a file to write."""
    parser.add_argument(f"--{name}", type=Path, metavar=metavar, help=meaning)
