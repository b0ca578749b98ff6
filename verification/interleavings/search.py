"""Depth-first search through all interleavings of a program: each run follows the last one further.

No state is stored: a run begins with empty stores and repeats the choices of its prefix (stateless
model checking, P. Godefroid, "Model checking for programming languages using VeriSoft", 1997). No
order is left out as equivalent to another.
"""

from collections.abc import Callable
from typing import NamedTuple

from verification.interleavings.schedule import Choice, Schedule


class Result(NamedTuple):
    """The interleavings of a program."""

    runs: int
    is_complete: bool
    """True if these are all of them."""
    violations: int
    first: int
    """The number of the first violating run, 0 if there is none."""
    violation: str
    """The rule that the shortest violating run violates."""
    trace: tuple[str, ...]
    """The steps of that run."""


def search(
    perform: Callable[[list[Choice]], tuple[Schedule, str]],
    limit: int,
    *,
    until_violation: bool = False,
) -> Result:
    """Perform runs with all prefixes of choices, `limit` at most, and return what they violated."""
    runs = violations = first = 0
    shortest: tuple[str, ...] = ()
    violation = ""
    prefix: list[Choice] = []
    while True:
        schedule, broken = perform(prefix)
        runs += 1
        if broken:
            violations += 1
            first = first or runs
            if not shortest or len(schedule.steps) < len(shortest):
                shortest, violation = tuple(schedule.steps), broken
        prefix = schedule.choices
        while prefix and prefix[-1].number + 1 == prefix[-1].of:
            prefix.pop()
        if not prefix or runs == limit or (broken and until_violation):
            return Result(runs, not prefix, violations, first, violation, shortest)
        prefix.append(prefix[-1]._replace(number=prefix.pop().number + 1))
