"""The report of `manage.py lab bench journey`: its tables and its targets."""

from collections.abc import Collection, Iterator, Sequence
from numbers import Real
from statistics import median
from typing import Any

from inventory.management.console import Rows
from loadtest.bench import results
from loadtest.bench.journey import READERS, SIGN_INS, TABS, WITH, WITHOUT, ZIPPED
from loadtest.bench.results import Limit, Progress, Row, cells, compare, measure
from loadtest.charts import marked
from loadtest.charts.terminal import page

PARTS = ("requests", "crowds", "growth")
SIZES = {"people": 24, "seconds": 0.3, "buyers": 6000, "crowd_seconds": 4.0}
"""Buyers in each pass, seconds for which a request that changes nothing is repeated, buyers of a
sale during the sign-ins, and seconds for which a crowd is there."""
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
    "nginx_ms": ("behind\nnginx, ms", "{:.3f}"),
    "nginx_x": ("behind nginx,\nx /livez", "{:.2f}"),
    "times": ("in five\nminutes", "{:.0f}"),
}
IN_DOCS = ("ms", "x", "nginx_x", "bytes", "times")
NOTHING = 0.05
"""Multiple of /livez up to which a request behind nginx costs Python nothing."""
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
CROWDS: tuple[tuple[str, str, str, str, float | None], ...] = (
    (READERS, "per_second", "requests a second", ">=", 20_000),
    (READERS, "cores", "cores of Python", "<=", 0.02),
    (ZIPPED, "per_second", "requests a second", ">=", None),
    (TABS, "offered", "polls a second", ">=", None),
    (TABS, "per_second", "polls served a second", ">=", None),
    (TABS, "cores", "cores of Python that the polls need", "<=", 0.1),
    (SIGN_INS, "refused", "refused, in the worst round", "<=", 0),
    (SIGN_INS, "seconds", "seconds until all have an answer", "<=", None),
    (SIGN_INS, "alone_per_second", "purchases a second without them", ">=", None),
    (SIGN_INS, "per_second", "purchases a second meanwhile", ">=", None),
    (SIGN_INS, "alone_p99_ms", "p99 of purchases without them, ms", "<=", None),
    (SIGN_INS, "p99_ms", "p99 of purchases meanwhile, ms", "<=", None),
    (SIGN_INS, "p99_ratio", "ratio of the two", "<=", 1.5),
)
"""Crowd, figure, its meaning, and its target."""
SHOWN = 8
"""Pages and jobs of the grown shop in the table, the slowest first; JSON has all."""


def bench(asked: Row, progress: Progress) -> Row:
    """Return the report; loadtest.bench.journey.runner documents the arguments."""
    report: Row = {"settings": asked, "missing": {}, "versions": {}}
    measured: dict[str, list[Row]] = {}
    for part in asked["parts"]:  # each on stores of its own
        arguments = asked | SIZES | {"part": part}
        one, rounds = measure("journey", "mariadb", arguments, progress, ENVIRON)
        report["missing"] |= one["missing"]
        report["versions"] |= one["versions"]
        measured |= rounds
    (growth,) = measured.pop("growth", None) or [{"rows": [], "expiring": 0}]
    report |= {"lines": [summary(*line) for line in measured.items()], "growth": growth}
    return report | {"targets": compare(limits(report))}


def summary(line: str, rounds: list[Row]) -> Row:
    """Return a line with the medians of its rounds."""
    names = [name for name, value in rounds[0].items() if isinstance(value, Real)]
    medians = {name: round(median(one[name] for one in rounds), 4) for name in names}
    if "refused" in medians:
        medians["refused"] = max(one["refused"] for one in rounds)
    wrong = sorted({answer for one in rounds for answer in one["wrong"]})
    return {"line": line, **medians, "wrong": wrong, "rounds": rounds}


def limits(report: Row) -> Iterator[Limit]:
    """Yield the targets of the parts that are asked for."""
    found: dict[str, dict[str, Any]] = {row["line"]: row for row in report["lines"]}
    parts = report["settings"]["parts"]
    for line, python, nginx in TARGETS if "requests" in parts else ():
        row = found.get(line, {})
        yield f"{line}: x /livez", row.get("x"), "<=", python
        if nginx is not None:
            yield f"{line}: behind nginx, x /livez", row.get("nginx_x"), "<=", nginx
    for line, name, meaning, sign, limit in CROWDS if "crowds" in parts else ():
        if limit is not None:
            yield f"{line}: {meaning}", found.get(line, {}).get(name), sign, limit
    times = {(row["what"], row["name"]): row["ms"] for row in report["growth"]["rows"]}
    if times:
        pages = max(ms for (what, _name), ms in times.items() if what == "page")
        yield "grown shop: slowest page, ms", pages, "<=", 100
        audit = times.get(("service", "audit of the big sale"))
        yield "grown shop: audit of the sale of 100,000 orders, ms", audit, "<=", 250
        expired = report["growth"]["expiring"] / times["job", "shop.tasks.expire_unpaid_orders"]
        yield "grown shop: orders expired a second", 1000 * expired, ">=", 1000


def is_sound(report: Row) -> bool:
    """Return True if all was measured and every request was answered as it should be."""
    return not report["missing"] and not any(_wrong(report))


def _wrong(report: Row) -> Iterator[str]:
    for row in report["lines"]:
        yield from (f"{row['line']}: {answer}" for answer in row["wrong"])
    for row in report["growth"]["rows"]:
        if row.get("status", 200) >= 400:
            yield f"{row['name']}: {row['status']}"


def table(report: Row, names: Collection[str] = COLUMNS) -> tuple[Sequence[str], Rows]:
    """Return the costs of the requests, as the columns of these names."""
    columns = {name: COLUMNS[name] for name in names}
    rows = [row for row in report["lines"] if "ms" in row]
    headings = (heading for heading, _shape in columns.values())
    return ("request", *headings), [[row["line"], *cells(columns, row)] for row in rows]


def _tables(report: Row) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Yield the figures of the crowds and those of the grown shop."""
    found = {row["line"]: row for row in report["lines"]}
    yield (
        ("crowd", "figure", "measured"),
        [
            [line, meaning, _shown(found[line][name])]
            for line, name, meaning, _sign, _limit in CROWDS
            if line in found
        ],
    )
    rows = report["growth"]["rows"][:SHOWN]
    growth = [[row["name"], f"{row['ms']:.1f}", str(row["queries"])] for row in rows]
    yield ("slowest of the grown shop", "ms", "queries"), growth


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def remarks(report: Row) -> list[str]:
    """Return the other tables as lines, what was refused, and the versions."""
    others = [": ".join(row) for _headings, rows in _tables(report) for row in rows]
    return [*others, *_wrong(report), *results.remarks(report)]


def markdown(report: Row) -> str:
    """Return the tables in Markdown for the docs."""
    headings, rows = table(report, IN_DOCS)
    rounds = report["settings"]["rounds"]
    requests = page(headings, map(list, rows), rounds, report["versions"])
    others = [marked.table(headings, rows) for headings, rows in _tables(report) if rows]
    return "\n".join([requests, *others])
