"""A report of scenarios as an offline page, as pictures, and as the sections of docs/faults.md."""

import textwrap
from pathlib import Path
from typing import Any

from django.template.loader import render_to_string

from loadtest.charts import marked, timeline
from loadtest.scenarios import SCENARIOS, Result, tell

PART = "lab_scenario"
FRONT = "holder-paused"
"""The scenario whose two pictures open the README."""


def shown(result: Result) -> dict[str, Any]:
    """What a page shows of one: the context of lab/_scenario.html."""
    scenario = SCENARIOS[result["name"]]
    halves = [
        {
            "heading": timeline.heading(half),
            "picture": timeline.draw(half),
            "rows": timeline.rows(half),
        }
        for half in result["halves"]
    ]
    return {
        "scenario": scenario,
        "result": result,
        "sentences": tell(scenario, result),
        "halves": halves,
    }


def html(report: dict[str, Any]) -> str:
    """One page that needs nothing else."""
    context = {
        "played": [shown(one) for one in report["scenarios"]],
        "versions": report["versions"],
    }
    return render_to_string("lab/scenarios_offline.html", context)


def pictures(report: dict[str, Any], folder: Path, *, suffix: str = "svg") -> None:
    """NAME-broken and NAME-repaired of each, as svg or png."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in report["scenarios"]:
        for half in result["halves"]:
            svg = f"{timeline.draw(half, alone=True)}\n".encode()
            file = _picture_of(result["name"], half, folder).with_suffix(f".{suffix}")
            file.write_bytes(timeline.png(half) if suffix == "png" else svg)


def _picture_of(name: str, half: dict[str, Any], folder: Path) -> Path:
    return folder / f"{name}-{'repaired' if half['is_repaired'] else 'broken'}.svg"


def write(report: dict[str, Any], page: Path) -> None:
    """The sections between the page's markers, their pictures in img/ beside it."""
    folder = page.parent / "img"
    pictures(report, folder)
    front = next(one for one in report["scenarios"] if one["name"] == FRONT)
    for name, half in zip(("oversell", "repair"), front["halves"], strict=True):
        (folder / f"{name}.svg").write_text(timeline.draw(half, alone=True) + "\n")
    sections = "\n".join(_section(one) for one in report["scenarios"])
    marked.write(page, PART, f"\n{sections}\n")


def _section(result: Result) -> str:
    scenario = SCENARIOS[result["name"]]
    images = [
        f"![{timeline.heading(half)}](img/{_picture_of(result['name'], half, Path()).name})"
        for half in result["halves"]
    ]
    return "\n".join(
        [
            f"### {scenario.title} ({scenario.row}, `{scenario.name}`)\n",
            *images,
            "",
            _wrapped("What happened: " + " ".join(tell(scenario, result))),
            _wrapped(f"What repairs it: {scenario.repair}"),
            _wrapped(f"Immune: {scenario.immune}"),
        ]
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False) + "\n"
