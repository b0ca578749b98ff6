"""Reports for people: a sentence and a table."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _
from rich.box import SIMPLE_HEAD
from rich.table import Table

Run = dict[str, Any]


def met(run: Run) -> bool:
    """Return True if rows and history of a run show what its guard promises."""
    if run["verdict"] == "ok" and _breaches(run):
        return False
    return run["verdict"] != "not-run" and run["expected"] in (None, run["verdict"])


def _breaches(run: Run) -> list[str]:
    """Return the breaches that the checker found."""
    return list(run.get("checked", {}).get("breaches", ()))


def sentence(runs: Sequence[Run]) -> str:
    """Return the verdicts as text: "none sold 83 of 50. redis sold exactly 50."."""
    sentences, absent = [], defaultdict(list)
    for name, group in by_guard(runs):
        if missing := [run for run in group if run["verdict"] == "not-run"]:
            absent[missing[0]["why"].rstrip(".")].append(name)
        else:
            sentences.append(_of_guard(name, group))
    for why, names in absent.items():
        values = {"guard": ", ".join(names), "why": why}
        sentences.append(_("%(guard)s did not run: %(why)s.") % values)
    return " ".join(sentences)


def by_guard(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Return the runs of each guard under its name, in their order."""
    several = len({run["discipline"] for run in runs}) > 1

    def name(run: Run) -> str:
        return f"{run['backend']} + {run['discipline']}" if several else run["backend"]

    names = dict.fromkeys(map(name, runs))
    return [(one, [run for run in runs if name(run) == one]) for one in names]


def _of_guard(name: str, runs: Sequence[Run]) -> str:
    values: dict[str, object] = {"guard": name, "stock": runs[0]["stock"], "runs": len(runs)}
    sold = sorted(run["sold"] for run in runs)
    if sold[0] == sold[-1] == runs[0]["stock"]:
        if len(runs) == 1:
            return _("%(guard)s sold exactly %(stock)s.") % values
        return _("%(guard)s sold exactly %(stock)s in each of %(runs)s runs.") % values
    values["sold"] = sold[0] if sold[0] == sold[-1] else f"{sold[0]}-{sold[-1]}"
    if len(runs) == 1:
        return _("%(guard)s sold %(sold)s of %(stock)s.") % values
    return _("%(guard)s sold %(sold)s of %(stock)s in each of %(runs)s runs.") % values


def table(runs: Sequence[Run]) -> Table:
    """Return a table with one line per run."""
    drawn = Table(title=sentence(runs), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    drawn.add_column("guard", no_wrap=True)
    for column in ("sold", "over", "unsold", "orders/s", "p50/p95/p99 ms"):
        drawn.add_column(column, justify="right", no_wrap=True)
    drawn.add_column("verdict", no_wrap=True)
    for run in runs:
        drawn.add_row(
            f"{run['backend']} + {run['discipline']}",
            f"{run['sold']}/{run['stock']}",
            str(run["oversold"]),
            str(run["undersold"]),
            f"{run['orders_per_second']:.0f}",
            "/".join(f"{wait:.0f}" for wait in run["wait_ms"].values()),
            str(run["verdict"]),
        )
    return drawn


def surprises(runs: Sequence[Run]) -> list[str]:
    """Return a line for each run that does not show what its guard promises."""
    return [
        f"{run['backend']} + {run['discipline']} #{run['repeat']}: {run['verdict']}"
        + (f" where {run['expected']} was promised" if run["expected"] else "")
        + f" ({'; '.join([run['why'], *_breaches(run)])})"
        for run in runs
        if not met(run)
    ]
