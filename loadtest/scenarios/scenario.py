"""The declaration of a scenario: one failure, run once broken and once repaired.

CONTRIBUTING.md says how to add one. Its `fault` is only a row of the page /learn/grid/; what its
function injects is in `devservers.faults.injectors`. `loadtest.kernel.faults` has those of
`lab run`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from loadtest.kernel.report import duration
from loadtest.scenarios.testbed import Testbed
from loadtest.texts import Told

Facts = dict[str, Any]
Result = dict[str, Any]
Run = Callable[[Testbed, bool], Facts]


@dataclass(frozen=True, kw_only=True)
class Scenario(Told):
    """One failure. The story among its texts is filled with the facts of the actual run.

    `run(testbed, is_repaired)` runs one variant and returns its facts, all of them numbers; the
    fact "broke" says whether the failure occurred. In the story, `%(b_name)s` is a fact of the
    broken variant and `%(r_name)s` one of the repaired variant; a fact "waited" has its unit.
    """

    kind: ClassVar[str] = "scenarios"
    fault: str
    """The name of one of the faults in the texts."""
    row: str
    """Its number in `lab scenario --list`: L for recipes of textbooks, F for failures of locks, FS
    for flash sales. Several scenarios may share one. docs/reference/faults.md numbers its rows
    otherwise, except F6 to F8."""
    broken: str
    """The guard that fails."""
    repaired: str
    """The guard that prevents the failure."""
    run: Run
    needs: str = ""
    """A server program beside Redis; a variant does not run where it is not installed."""

    def verdict(self, broken: Facts, repaired: Facts) -> tuple[str, str]:
        """Return "ok", "not-run" if nothing was shown, or "failed", and the reason."""
        if not broken["broke"]:
            return "not-run", "the control did not break"
        return ("failed", "the repaired variant broke as well") if repaired["broke"] else ("ok", "")

    def describe(self, result: Result) -> list[str]:
        """Return three sentences on the actual run in the active language; none if it failed."""
        if len(result["halves"]) < 2:
            return []
        broken, repaired = (variant["facts"] for variant in result["halves"])
        facts = {f"b_{name}": fact for name, fact in broken.items()}
        facts |= {f"r_{name}": fact for name, fact in repaired.items()}
        waits = {name: duration(fact) for name, fact in facts.items() if name.endswith("waited")}
        return [line % (facts | waits) for line in self.texts["story"].splitlines()]


REGISTERED: dict[str, Scenario] = {}


def scenario(**about: Any) -> Callable[[Run], Run]:
    """Register the decorated function as a Scenario of its name with these fields."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        REGISTERED[name] = Scenario(name=name, run=run, **about)
        return run

    return register
