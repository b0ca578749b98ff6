"""Reports for people: the sentence that says it all, and the table."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

Run = dict[str, Any]


def met(run: Run) -> bool:
    """Whether a run shows what its guard promises."""
    return run["verdict"] != "not-run" and run["expected"] in (None, run["verdict"])


def sentence(runs: Sequence[Run]) -> str:
    """The verdict first: "none sold 83 of 50. redis sold exactly 50."."""
    return " ".join(_of_guard(name, list(group)) for name, group in _by_guard(runs))


def _by_guard(runs: Sequence[Run]) -> Iterable[tuple[str, Iterable[Run]]]:
    several = len({run["discipline"] for run in runs}) > 1

    def name(run: Run) -> str:
        return f"{run['backend']} + {run['discipline']}" if several else run["backend"]

    order = list(dict.fromkeys(map(name, runs)))
    return groupby(sorted(runs, key=lambda run: order.index(name(run))), key=name)


def _of_guard(name: str, runs: Sequence[Run]) -> str:
    if missing := [run for run in runs if run["verdict"] == "not-run"]:
        return f"{name} did not run: {missing[0]['why']}."
    sold = sorted({run["sold"] for run in runs})
    stock = runs[0]["stock"]
    times = f" in {len(runs)} runs of {len(runs)}" if len(runs) > 1 else ""
    if sold == [stock]:
        return f"{name} sold exactly {stock}{times}."
    spread = str(sold[0]) if len(sold) == 1 else f"{sold[0]} to {sold[-1]}"
    return f"{name} sold {spread} of {stock}{times}."


def table(runs: Sequence[Run]) -> Table:
    """One line a run."""
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
    """A line for each run that does not show what its guard promises."""
    return [
        f"{run['backend']} + {run['discipline']} #{run['repeat']}: {run['verdict']}"
        + (f" where {run['expected']} was promised" if run["expected"] else "")
        + f" ({run['why']})"
        for run in runs
        if not met(run)
    ]
