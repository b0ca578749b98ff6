"""Check that a recorded history is linearizable; exit 0 if legal, 1 if illegal, 2 if undecided.

Example: manage.py verify check --model fenced history/
"""

import json
import math
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.kernel.history import Event
from loadtest.kernel.params import Params, PlanError, param
from loadtest.kernel.terminal import Terminal
from verification.histories.linearizability import BUDGET, BadHistory, Operation, check
from verification.histories.lock_models import Lock, Stock

LOCKS: dict[str, dict[str, Any]] = {
    "mutex": {},
    "reentrant": {"reentrant": True},
    "fenced": {"fenced": True},
    "reentrant-fenced": {"reentrant": True, "fenced": True},
    "read-write": {"size": math.inf},
}
MODELS = (*LOCKS, "semaphore", "stock")


@dataclass(frozen=True, kw_only=True)
class Limits(Params):
    """The size of the object, and of the search."""

    size: int = param(1, "semaphore: permits", limits=(0, 10**12))
    units: int = param(0, "stock: units at the start", limits=(0, 10**12))
    budget: int = param(
        BUDGET, "steps for each object, after which it is undecided", limits=(0, 10**12)
    )


def add_arguments(parser: ArgumentParser) -> None:
    """Add the model, the history and the limits."""
    parser.add_argument("--model", required=True, choices=MODELS, help="what the object promises")
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines, or a folder of them")
    Limits.add_options(parser)


def handle(terminal: Terminal, *, model: str, file: Path, **options: Any) -> int:
    """Check the history; return the code of its worst verdict."""
    asked = Limits.of(options)
    features = LOCKS.get(model, {"size": asked.size})
    chosen = Stock(units=asked.units) if model == "stock" else Lock(**features)
    try:
        events = read(file)
        verdicts = check(events, chosen, budget=asked.budget)
    except (OSError, BadHistory) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{file} cannot be checked: {why}.") from error
    if not verdicts:
        raise PlanError(f"{file} has no operations of the model {model}.")
    worst = max((one.verdict for one in verdicts), key=("legal", "undecided", "illegal").index)
    objects = []
    for one in verdicts:
        wrong, *near = (of and _row(of, events[0]["t"]) for of in (one.wrong, *one.near))
        objects.append({**one._asdict(), "wrong": wrong, "near": near})
    terminal.show({"model": model, "verdict": worst, "objects": objects}, _describe)
    return {"legal": 0, "illegal": 1, "undecided": 2}[worst]


def read(file: Path) -> list[Event]:
    """Return the events of a file or a folder, in order of time. Raise BadHistory or OSError."""
    events: list[Event] = []
    for path in file.glob("*.jsonl") if file.is_dir() else [file]:
        lines = path.read_text(errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            try:
                events.append({**(event := json.loads(line)), "t": int(event["t"])})
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                if number < len(lines):  # a killed process may leave half a line at the end
                    raise BadHistory(f"{path.name}, line {number} is no event") from error
    return sorted(events, key=lambda event: int(event["t"]))


def _row(operation: Operation, start: int) -> dict[str, Any]:
    event, ended = operation.event, operation.returned
    facts = [f"{name} {event[name]}" for name in ("token", "order", "error") if name in event]
    return {
        "actor": operation.actor,
        "operation": operation.do,
        "outcome": ", ".join([operation.outcome, *facts]),
        "called": (operation.called - start) / 1e9,
        "returned": None if ended == math.inf else (ended - start) / 1e9,
    }


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    for one in report["objects"]:
        word = terminal.verdict(one["verdict"], is_expected=one["verdict"] == "legal")
        terminal.print(f"{one['name']}: {word}, {one['operations']:,} operations.")
        if one["verdict"] == "undecided":
            terminal.print(f"  No verdict after {one['steps']:,} steps; --budget allows more.")
        if one["near"]:
            terminal.print("  No order of the operations explains the marked one:")
        for row in one["near"]:
            mark, end = ">" if row == one["wrong"] else " ", row["returned"]
            time = f"{row['called']:.6f} s to " + ("no return" if end is None else f"{end:.6f} s")
            terminal.print(f"  {mark} {time}  {row['actor']}: {row['operation']}, {row['outcome']}")
