"""Recommend a lock for what you have and need, with its cost and the runs that prove it.

Example: manage.py lab choose --have redis --have zookeeper --survive failover --fence
"""

import sys
from argparse import ArgumentParser
from typing import Any

from loadtest.bench.locks.properties import FAILURES
from loadtest.charts.terminal import Terminal
from loadtest.load.plan import PlanError
from loadtest.scenarios.choice import LOCKS, Project, choose
from loadtest.scenarios.scenario import FAULTS

OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "have": ("what you have, several; process: the application is one process", tuple(LOCKS)),
    "survive": ("failures in which no two holders may write, several", tuple(FAILURES)),
    "goal": ("two holders would damage data, or only repeat work", ("correctness", "efficiency")),
}
"""The meaning and the values of the options; "correctness" includes a paused holder."""
FLAGS = {"quick": "a release must wake the next waiter", "fence": "the data can check a token"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add what the project has and needs; on a terminal, the command asks for it."""
    parser.set_defaults(parse=parser.parse_args)
    for name, (text, known) in OPTIONS.items():
        about = f"{text}: {', '.join(known)}"
        parser.add_argument(
            f"--{name}", action="append", choices=known, metavar="NAME", default=[], help=about
        )
    for name, text in FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)


def handle(terminal: Terminal, **options: Any) -> int:
    """Print the recommendation; return 1 if no lock meets the needs."""
    if not options["have"]:
        if terminal.as_json or not sys.stdin.isatty():
            raise PlanError(f"Name what you have with --have: {', '.join(LOCKS)}.")
        return handle(terminal, **vars(options["parse"](_ask())))
    # Any process can be paused at any line.
    always = [] if options["goal"][-1:] == ["efficiency"] else ["paused"]
    project = Project(
        stores=tuple(store for store in LOCKS if store in options["have"]),
        survive=tuple(one for one in FAILURES if one in options["survive"] + always),
        is_quick=options["quick"],
        has_fence=options["fence"],
    )
    result = choose(project)
    terminal.show(result, _describe)
    return 0 if result["recommended"] else 1


def _ask() -> list[str]:
    """Ask for each option, and return the answers as arguments."""
    found = []
    try:
        for name, (text, known) in OPTIONS.items():
            answer = input(f"--{name}: {text}\n  {', '.join(known)}: ")
            found += [f"--{name}={one}" for one in answer.replace(",", " ").split()]
        for name, text in FLAGS.items():
            found += [f"--{name}"] * input(f"--{name}: {text}? [y/N] ").lower().startswith("y")
    except EOFError:
        raise PlanError("The input ended before all questions were answered.") from None
    if not any(one.startswith("--have=") for one in found):
        raise PlanError(f"Name what you have: {', '.join(LOCKS)}.")
    return found


def _describe(terminal: Terminal, result: dict[str, Any]) -> None:
    if found := result["recommended"]:
        name = terminal.verdict(found["lock"], is_expected=True)
        terminal.print(f"Recommended: {name}. {found['summary']}")
        cost = ", ".join(f"{value} {name}" for name, value in found["cost"].items())
        terminal.print(f"Cost: {cost or 'not measured'} (docs/measurements/locks.md).\n\n")
        terminal.table(("failure", found["lock"]), found["failures"].items())
        for run in found["runs"]:
            shows = "" if run["is_proof"] else ", the failure on another lock"
            terminal.print(f"{FAULTS[run['need']]}{shows}:\n  {run['command']}")
        terminal.print()
    else:
        terminal.print(terminal.verdict("No lock meets all needs.", is_expected=False))
        terminal.print(
            "Let the data check a fencing token (--fence), write with a condition, or use another "
            "store: docs/library/choose-a-lock.md.\n\n"
        )
    rejected = [(one, "; ".join(why)) for one, why in result["rejected"].items()]
    terminal.table(("not recommended", "because"), rejected)
