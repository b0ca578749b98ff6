"""The course: what the field learned about locks and flash sales, a step for each lesson."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from loadtest.charts.source import Excerpt
from loadtest.texts import Told


@dataclass(frozen=True, kw_only=True)
class Step(Told):
    """A lesson; its texts have ninety words at most."""

    kind: ClassVar[str] = "steps"
    broken: Excerpt
    repaired: Excerpt
    scenarios: tuple[str, ...]
    """The first one provides the picture."""


@dataclass(frozen=True, kw_only=True)
class Part(Told):
    """A part of the course."""

    kind: ClassVar[str] = "parts"
    steps: tuple[Step, ...]


def _step(name: str, about: dict[str, Any]) -> Step:
    broken, repaired = (_code(*about[code]) for code in ("broken", "repaired"))
    return Step(name=name, broken=broken, repaired=repaired, scenarios=tuple(about["scenarios"]))


def _code(path: str, first: str, last: str = "", faulty: str = "", then: Any = ()) -> Excerpt:
    return Excerpt(path, first, last, faulty, _code(*then) if then else None)


_read = tomllib.loads(Path(__file__).with_name("course.toml").read_text("utf-8"))
PARTS = tuple(
    Part(name=part, steps=tuple(_step(*step) for step in steps.items()))
    for part, steps in _read.items()
)
COURSE = tuple(step for part in PARTS for step in part.steps)


def step_of(scenario: str) -> Step:
    """Return the step that shows the scenario."""
    return next(step for step in COURSE if scenario in step.scenarios)
