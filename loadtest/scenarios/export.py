"""Export a scenario report as an offline page, as charts, and as sections of faults.md."""

import textwrap
from pathlib import Path
from typing import Any

from django.template.loader import render_to_string

from loadtest.charts import marked, timeline
from loadtest.scenarios.catalogue import SCENARIOS
from loadtest.scenarios.scenario import Result

PART = "lab_scenario"


def shown(result: Result) -> dict[str, Any]:
    """Return the context of lab/_scenario.html for one result."""
    scenario = SCENARIOS[result["name"]]
    variants = [
        {
            "heading": timeline.heading(variant),
            "chart": timeline.draw(variant),
            "rows": timeline.rows(variant),
        }
        for variant in result["halves"]
    ]
    return {
        "scenario": scenario,
        "result": result,
        "sentences": scenario.describe(result),
        "variants": variants,
    }


def html(report: dict[str, Any]) -> str:
    """Return one HTML page without external resources."""
    context = {
        "shown": [shown(one) for one in report["scenarios"]],
        "versions": report["versions"],
    }
    return render_to_string("lab/scenarios_offline.html", context)


def write_charts(report: dict[str, Any], folder: Path, *, suffix: str = "svg") -> None:
    """Write NAME-broken and NAME-repaired for each scenario, as svg or png."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in report["scenarios"]:
        for variant in result["halves"]:
            svg = f"{timeline.draw(variant, alone=True)}\n".encode()
            file = _chart_file(result["name"], variant, folder).with_suffix(f".{suffix}")
            file.write_bytes(timeline.png(variant) if suffix == "png" else svg)


def _chart_file(name: str, variant: dict[str, Any], folder: Path) -> Path:
    return folder / f"{name}-{'repaired' if variant['is_repaired'] else 'broken'}.svg"


def write(report: dict[str, Any], page: Path) -> None:
    """Replace the sections between the page's markers, and their charts in img/ beside it."""
    write_charts(report, page.parent / "img")
    sections = "\n".join(_section(one) for one in report["scenarios"])
    marked.write(page, PART, f"\n{sections}\n")


def _section(result: Result) -> str:
    scenario = SCENARIOS[result["name"]]
    images = [
        f"![{timeline.heading(variant)}](img/{_chart_file(result['name'], variant, Path()).name})"
        for variant in result["halves"]
    ]
    return "\n".join(
        [
            f"### {scenario.title} ({scenario.row}, `{scenario.name}`)\n",
            *images,
            "",
            _wrapped("What happened: " + " ".join(scenario.describe(result))),
            _wrapped(f"What repairs it: {scenario.repair}"),
            _wrapped(f"Immune: {scenario.immune}"),
        ]
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False) + "\n"
