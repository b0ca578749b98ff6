"""What a scenario is: a failure that is played twice, once broken and once repaired."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise

from loadtest.scenarios.testbed import Stage

Result = dict[str, Any]
Text = str | Promise


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One failure. Texts may be lazy; `sentences` are filled with the facts of the actual run.

    `play` stages one half and returns its facts, numbers all; "broke" says whether the failure
    was seen. A fact of the broken half is `%(b_name)s` in a sentence, of the repaired `%(r_name)s`.
    """

    name: str
    row: str
    """Its row in REQUIREMENTS, e.g. F2."""
    title: Text
    broken: str
    """The guard that fails."""
    repaired: str
    """The guard that does not."""
    sentences: tuple[Text, Text, Text]
    repair: Text
    """What repairs it, and why."""
    immune: Text
    """Which backends do not have it at all."""
    play: Callable[[Stage, bool], dict[str, Any]]
    is_overlap: bool = True
    """The broken half counts only if two believed at once that they held the lock."""

    def verdict(self, broken: Mapping[str, Any], repaired: Mapping[str, Any]) -> tuple[str, str]:
        """ok, failed (the repair did not hold) or not-run (the control did not break), and why."""
        if self.is_overlap and not broken["overlaps"]:
            return "not-run", "no two holders were seen: the fault did not fire"
        if not broken["broke"]:
            return "not-run", "the control did not break"
        if repaired["broke"]:
            return "failed", "the repaired half broke as well"
        return "ok", ""


def tell(scenario: Scenario, result: Result) -> list[str]:
    """What happened in the actual run, in three sentences and the reader's language."""
    if len(result["halves"]) < 2:
        return []
    broken, repaired = (half["facts"] for half in result["halves"])
    facts = {f"b_{name}": fact for name, fact in broken.items()}
    facts |= {f"r_{name}": fact for name, fact in repaired.items()}
    return [str(sentence) % facts for sentence in scenario.sentences]
