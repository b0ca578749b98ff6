"""Send mixed load to a whole shop for hours, and count what is left behind.

Example: manage.py verify soak --seconds 1800
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from loadtest.cli.endure import endure
from loadtest.kernel.params import add_file, add_numbers, keep_within
from loadtest.kernel.terminal import Terminal

LIMITS = {"seconds": (12, 86_400), "seed": (0, 2**32)}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the duration, the seed and the page to update."""
    meanings = ("seconds", 1800, "duration in seconds"), ("seed", 1, "what each visit does")
    add_numbers(parser, meanings)
    add_file(parser, "write", "also write the report between FILE's markers lab_endure_soak")


def handle(terminal: Terminal, *, write: Path | None, **options: Any) -> int:
    """Run the load on private stores; return 1 unless its verdict is ok."""
    asked = {name: options[name] for name in LIMITS}
    keep_within(LIMITS, asked)
    stores, module = ["redis", "zookeeper"], "verification.soak"
    return endure(terminal, "soak", module, asked, stores, pay_within=60, write=write)
