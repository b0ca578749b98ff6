"""Benchmark locks, purchases, or the whole journey of a buyer.

Example: manage.py lab bench locks --backend redis --rounds 3
"""

from argparse import ArgumentParser
from typing import Any

from loadtest.bench.benchmark import Benchmark
from loadtest.bench.journey.report import Journey
from loadtest.bench.locks.report import Locks
from loadtest.bench.purchase.report import Purchase
from loadtest.kernel.params import PlanError, add_file, options_of
from loadtest.kernel.terminal import Terminal

SUBJECTS: dict[str, Benchmark] = {"locks": Locks(), "purchase": Purchase(), "journey": Journey()}
SHARED = "rounds"
"""The option that all subjects have."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the subject, the options of each, and the output."""
    parser.add_argument(
        "subject",
        nargs="?",
        choices=SUBJECTS,
        default="locks",
        help="locks (default), purchase: over HTTP, compared with the reference implementation, "
        "journey: the cost of a buyer, request by request",
    )
    markers = " or ".join(one.part for one in SUBJECTS.values())
    add_file(parser, "write", f"also write the table to FILE, between the markers {markers}")
    Locks.params.add_options(parser, lambda name: name == SHARED)
    for subject, benchmark in SUBJECTS.items():
        group = parser.add_argument_group(subject)
        benchmark.params.add_options(group, lambda name: name != SHARED)


def handle(terminal: Terminal, *, subject: str, **options: Any) -> int:
    """Measure the subject; return 1 if the report is not sound."""
    own = {one.name for one, _about in SUBJECTS[subject].params.about()}
    for other, benchmark in SUBJECTS.items():
        for one, about in benchmark.params.about():
            if one.name not in own and options[one.name] is not None:
                option = options_of(one, about)[0]
                raise PlanError(f"{option} belongs to `lab bench {other}`, not {subject}.")
    return SUBJECTS[subject].handle(terminal, **options)
