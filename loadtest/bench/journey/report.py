"""The report of `manage.py lab bench journey`: its tables and its targets."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from loadtest.bench.journey.runner import WITH, WITHOUT
from loadtest.bench.results import Limit, Progress, Row, cells, compare, measure, remarks
from loadtest.charts.terminal import page
from locking.management.console import Rows

__all__ = ["PARTS", "bench", "is_sound", "markdown", "remarks", "table"]

PARTS = ("requests",)
SIZES = {"people": 8, "seconds": 0.3}
"""Buyers in each pass, and seconds for which a request that changes nothing is repeated."""
ENVIRON = {
    "MAX_WAITING": "6",  # the shop's defaults
    "PURCHASES_PER_GRANT": "8",
    "BUY_LIMIT": "1000000/second",  # one address causes all requests
    "SIGN_IN_LIMIT": "1000000/second",
}
COLUMNS = {
    "ms": ("worker\nCPU ms", "{:.2f}"),
    "x": ("x\n/livez", "{:.1f}"),
    "queries": ("quer-\nies", "{:.1f}"),
    "redis": ("Redis\nmessages", "{:.1f}"),
    "bytes": ("bytes", "{:,.0f}"),
    "nginx_ms": ("behind nginx,\nms", "{:.3f}"),
    "nginx_x": ("behind nginx,\nx /livez", "{:.2f}"),
    "times": ("in five\nminutes", "{:.0f}"),
}
NOTHING = 0.05
"""Multiple of /livez below which a request behind nginx costs Python nothing: one in twenty."""
TARGETS = (
    *((name, 1, NOTHING) for name in ("home", "sale", "sale before the opening")),
    *((f"{name}, signed in", 6, None) for name in ("home", "sale", "sale before the opening")),
    *((f"poll of {name}", 1, NOTHING) for name in ("home", "stock", "stock before the opening")),
    ("/learn/", 2.5, NOTHING),
    ("sign-in", 65, None),
    (WITH, 130, None),
    (WITHOUT, 60, None),
)
"""Line, and its limits in Python and behind nginx, as multiples of /livez."""


def bench(asked: Row, progress: Progress) -> Row:
    """Return the report; loadtest.bench.journey.runner documents the arguments."""
    report, measured = measure("journey", "mariadb", asked | SIZES, progress, ENVIRON)
    report["lines"] = [_row(line, rounds) for line, rounds in measured.items()]
    found = {row["line"]: row for row in report["lines"]}
    return report | {"targets": compare(_limits(found))}


def _row(line: str, rounds: list[Row]) -> Row:
    """Return a line with the medians of its rounds."""
    medians = {
        name: round(median(one[name] for one in rounds), 4) for name in COLUMNS if name in rounds[0]
    }
    wrong = sorted({answer for one in rounds for answer in one["answers"]} - {"ok"})
    return {"line": line, **medians, "wrong": wrong, "rounds": rounds}


def _limits(found: dict[str, Row]) -> Iterator[Limit]:
    for line, python, nginx in TARGETS:
        row: dict[str, Any] = found.get(line, {})
        yield f"{line}: x /livez", row.get("x"), "<=", python
        if nginx is not None:
            yield f"{line}: behind nginx, x /livez", row.get("nginx_x"), "<=", nginx


def is_sound(report: Row) -> bool:
    """Return True if all was measured and every request was answered as it should be."""
    return not report["missing"] and not any(row["wrong"] for row in report["lines"])


def table(report: Row) -> tuple[Sequence[str], Rows]:
    """Return the costs of the requests."""
    headings = (heading for heading, _shape in COLUMNS.values())
    rows = [[row["line"], *cells(COLUMNS, row), ", ".join(row["wrong"])] for row in report["lines"]]
    return ("request", *headings, "refused"), rows


def markdown(report: Row) -> str:
    """Return the tables in Markdown for the docs."""
    headings, rows = table(report)
    rounds = report["settings"]["rounds"]
    return page(headings[:-1], [row[:-1] for row in rows], rounds, report["versions"])
