"""The report of `manage.py lab bench purchase`: its stores, its table and its targets."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from inventory.management.console import Rows
from loadtest.bench.results import Limit, Progress, Row, cells, compare
from loadtest.charts import marked
from loadtest.charts.terminal import page
from loadtest.kernel.actors import perform
from loadtest.kernel.topology import Topology

Rounds = dict[str, list[Row]]

ENVIRON = {
    "DJANGO_SETTINGS_MODULE": "loadtest.bench.reference.settings",
    "BUY_LIMIT": "1000000/second",  # a few buyers cause all the refusals
}
COLUMNS = {
    "per_second": ("a\nsecond", "{:.0f}"),
    "to_reference": ("x ref-\nerence", "{:.2f}"),
    "p50_ms": ("p50\nms", "{:.1f}"),
    "p99_ms": ("p99\nms", "{:.1f}"),
    "worker_cpu_ms": ("worker\nCPU ms", "{:.2f}"),
    "queries": ("quer-\nies", "{:.2f}"),
    "redis_trips": ("Redis\ntrips", "{:.2f}"),
    "redis_cpu_us": ("Redis\nCPU us", "{:.0f}"),
    "driver_cores": ("driver\ncores", "{:.2f}"),
}
PAGE = ("per_second", "to_reference", "p99_ms", "worker_cpu_ms", "redis_cpu_us")
"""The columns of the table in the docs."""
MACHINES = (10, 100, 1000)
SEEN = "queued, orders written and seen"
MEDIANS = [name for name in COLUMNS if name != "to_reference"]
RATIOS = (
    ("direct: x reference", "direct", "reference", "per_second", ">=", 4.5),
    ("direct: p99, x reference's", "direct", "reference", "p99_ms", "<=", 0.1),
    (
        "direct: x conditional without a lock",
        *("direct", "conditional, no lock", "per_second", ">=", 0.65),
    ),
    ("direct: 1,000 buyers, x 50", "direct, 1,000 buyers", "direct", "per_second", ">=", 0.95),
    ("direct: PostgreSQL, x MariaDB", "direct, PostgreSQL", "direct", "per_second", ">=", 0.8),
    ("sold out: x empty view", "sold out", "empty view", "per_second", ">=", 0.9),
    ("queued: accepted, x reference", "queued", "reference", "per_second", ">=", 9),
    ("queued: durable, x reference", SEEN, "reference", "per_second", ">=", 8),
    ("direct: worker CPU, x empty view", "direct", "empty view", "worker_cpu_ms", "<=", 2.3),
    ("queued: worker CPU, x empty view", "queued", "empty view", "worker_cpu_ms", "<=", 1.3),
    ("direct: token, rate x none", "direct", "direct, no token", "per_second", ">=", 1.2),
    ("direct: token, CPU x none", "direct", "direct, no token", "worker_cpu_ms", "<=", 0.8),
    ("queued: token, rate x none", "queued", "queued, no token", "per_second", ">=", 1.2),
    ("queued: token, CPU x none", "queued", "queued, no token", "worker_cpu_ms", "<=", 0.8),
)
"""Target, line, other line, figure, sign, limit of the ratio."""
FIGURES = (
    # A worker reads the row ten times a second, however many requests there are.
    ("sold out: queries", "sold out", "queries", "<=", 0.05),
    ("sold out: Redis trips", "sold out", "redis_trips", "<=", 1.05),
    ("queued: until the order is seen, p50 ms", SEEN, "p50_ms", "<=", 1000),
    ("queued: until the order is seen, p99 ms", SEEN, "p99_ms", "<=", 3000),
    ("SQLite: buys a second", "SQLite", "per_second", ">=", 600),
    ("SQLite: p99 ms", "SQLite", "p99_ms", "<=", 250),
)
"""Target, line, figure, sign, limit."""


def bench(asked: Row, progress: Progress) -> dict[str, Any]:
    """Return the report; loadtest.bench.purchase.runner documents the arguments."""
    report: dict[str, Any] = {"settings": asked, "missing": {}, "versions": {}, "lines": []}
    for store in ("mariadb", "postgresql", "sqlite"):
        topology = Topology(database=store, servers=["redis"], environ=ENVIRON, is_deployed=True)
        for event in perform("purchase", asked, topology):
            progress(event)
            if event["event"] == "stores":
                report["missing"] |= event["missing"]
            elif event["event"] == "versions":
                report["versions"][store] = event["versions"]
            elif event["event"] == "line":
                report["lines"].append(_row(store, event))
    measured: Rounds = {row["line"]: row["rounds"] for row in report["lines"]}
    for row in report["lines"]:
        ratio = _ratio(measured, row["line"], "reference", "per_second")
        if ratio and row["store"] == "mariadb":
            row["to_reference"] = ratio
    report["targets"] = targets(measured)
    return report


def _row(store: str, event: Row) -> Row:
    """Return a line with the medians of its rounds."""
    rounds = event["rounds"]
    row = {"store": store, **{name: event[name] for name in ("line", "server", "connections")}}
    row |= {
        name: round(median(one[name] for one in rounds), 3) for name in MEDIANS if name in rounds[0]
    }
    answers: Counter[str] = sum((Counter(one["answers"]) for one in rounds), Counter())
    breaches = [breach for one in rounds for breach in one["breaches"]]
    return row | {"answers": dict(answers), "breaches": breaches, "rounds": rounds}


def _ratio(measured: Rounds, line: str, other: str, name: str) -> float | None:
    """Return the median of the rounds' ratios; other load on the machine affects both sides."""
    pairs = zip(measured.get(line, ()), measured.get(other, ()), strict=False)
    ratios = [one[name] / reference[name] for one, reference in pairs if reference[name]]
    return round(median(ratios), 3) if ratios else None


def targets(measured: Rounds) -> list[Row]:
    """Return every target, its measured value, and whether it is met."""
    limits: list[Limit] = [
        (target, _ratio(measured, line, other, name), sign, limit)
        for target, line, other, name, sign, limit in RATIOS
    ]
    for target, line, name, sign, limit in FIGURES:
        rounds = measured.get(line)
        value = median(one[name] for one in rounds) if rounds else None
        limits.append((target, value, sign, limit))
    locked = [
        sum(one["answers"].get(kind, 0) for kind in ("store_down", "500"))
        for one in measured.get("SQLite", ())
    ]
    value = sum(locked) if locked else None
    limits.append(("SQLite: answered by a locked database", value, "<=", 0))
    limits += [
        (f"{line}: orders", rounds[0]["orders"], "=", rounds[0]["pieces"])
        for line, rounds in measured.items()
        if "pieces" in rounds[0]
    ]
    return compare(limits)


def is_sound(report: dict[str, Any]) -> bool:
    """Return True if everything was measured and the ledger of every round is consistent."""
    return not report["missing"] and not any(row["breaches"] for row in report["lines"])


def table(report: dict[str, Any]) -> tuple[Sequence[str], Rows]:
    """Return the measurements."""
    rows = []
    for row in report["lines"]:
        answers = ", ".join(f"{count} {kind}" for kind, count in row["answers"].items())
        ledger = "BROKEN" if row["breaches"] else "ok"
        figures = cells(COLUMNS, row)
        rows.append([row["line"], str(row["connections"]), *figures, ledger, answers])
    headings = (heading for heading, _shape in COLUMNS.values())
    return ["purchase", "con-\nnections", *headings, "ledger", "answers"], rows


def markdown(report: dict[str, Any]) -> str:
    """Return the measurements as Markdown tables for the docs."""
    columns = {name: COLUMNS[name] for name in PAGE}
    rows = [[row["line"], *cells(columns, row)] for row in report["lines"]]
    headings = ["purchase", *(heading for heading, _shape in columns.values())]
    measured = page(headings, rows, report["settings"]["rounds"], report["versions"]["mariadb"])
    machines = ["a second", *(f"{count:,} web machines" for count in MACHINES), "one Redis"]
    notes = "".join(f"{line}\n\n" for line in _short_loads(report))
    return f"{measured}\n{notes}{marked.table(machines, _capacity(report['lines']))}"


def _short_loads(report: dict[str, Any]) -> Iterator[str]:
    """Yield a remark if the shop was faster than the load that was prepared for it."""
    for row in report["lines"]:
        loads = [one["load_seconds"] for one in row["rounds"]] if row["line"] == SEEN else ()
        if loads and (shortest := min(loads)) < (asked := report["settings"])["burst"]:
            yield (
                f"{SEEN}: after {shortest:g} of {asked['burst']:g} s, all buyers had sent their "
                "form. Rates are those of the time under load. To make it longer, offer more than "
                f"--offered={asked['offered']:g} a second."
            )


def _capacity(lines: list[Row]) -> Iterator[list[str]]:
    """Yield requests per second for web machines of two cores, if only their CPU is the limit."""
    costs = {row["line"]: row for row in lines}
    for line in ("direct", "queued", "sold out"):
        one = 2 * 1000 / costs[line]["worker_cpu_ms"]
        redis = 1e6 / costs[line]["redis_cpu_us"]
        yield [line, *(f"{count * one:,.0f}" for count in MACHINES), f"{redis:,.0f}"]


def remarks(report: dict[str, Any]) -> list[str]:
    """Return breaches, versions of the stores, loads that ended early, and missing stores."""
    lines = [f"{row['line']}: {breach}" for row in report["lines"] for breach in row["breaches"]]
    for store, versions in report["versions"].items():
        found = ", ".join(f"{name} {value}" for name, value in versions.items())
        lines.append(f"{store}: {found}")
    lines += _short_loads(report)
    return lines + [f"{store}: {why}" for store, why in report["missing"].items()]
