"""The subcommands of `manage.py lab`; each module is one, found by its name.

The first line of a module's docstring is its help. `add_arguments(parser)` declares its options;
`handle(terminal, **options)` runs it and returns the exit code. PlanError means bad arguments
(exit 2), ExperimentFailed an unexpected failure (exit 1).
"""

from argparse import ArgumentParser
from collections.abc import Iterable

JSON_HELP = "print one JSON object only"


def add_numbers(parser: ArgumentParser, options: Iterable[tuple[str, int | None, str]]) -> None:
    """Add whole-number options: name, default, meaning."""
    for name, default, meaning in options:
        text = meaning if default is None else f"{meaning} (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
