"""`manage.py lab bench purchase`: its stores, its table, and what it has to reach."""

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from operator import eq, ge, le
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.charts.terminal import page
from loadtest.load.stores import Stores

Row = dict[str, Any]
Rounds = dict[str, list[Row]]

ENVIRON = {
    "DJANGO_SETTINGS_MODULE": "loadtest.bench.reference.settings",
    "BUY_LIMIT": "1000000/second",  # one buyer asks for all the refusals
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
"""The columns that docs/reference/benchmarks.md has."""
MACHINES = (10, 100, 1000)
SEEN = "queued, orders written and seen"
COMPARE: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, "=": eq}
MEDIANS = [name for name in COLUMNS if name != "to_reference"]


def bench(asked: dict[str, Any], progress: Callable[[Row], object]) -> dict[str, Any]:
    """The report of the benchmark, asked for as loadtest.bench.purchase.rounds says."""
    report: dict[str, Any] = {"settings": asked, "missing": {}, "versions": {}, "lines": []}
    if find_spec("granian") is None:
        report["missing"]["granian"] = "it is not installed"
    for store in ("mariadb", "sqlite"):
        with Stores(store, ["redis"]) as stores:
            report["missing"] |= stores.missing
            if stores.missing:
                continue
            stores.environ |= ENVIRON
            for name in ("MAX_WAITING", "PURCHASES_PER_GRANT"):  # the door and the line as shipped
                del stores.environ[name]
            for event in stores.direct("purchase", asked):
                progress(event)
                if event["event"] == "versions":
                    report["versions"][store] = event["versions"]
                elif event["event"] == "line":
                    report["lines"].append(_row(store, event))
    measured: Rounds = {row["line"]: row["rounds"] for row in report["lines"]}
    for row in report["lines"]:
        ratio = _ratio(measured, row["line"], "reference", "per_second")
        if ratio and row["store"] == "mariadb":
            row["to_reference"] = ratio
    report["targets"] = [
        {"target": target, "value": value, "met": met} for target, value, met in _targets(measured)
    ]
    return report


def _row(store: str, event: Row) -> Row:
    """A line with the medians of its rounds."""
    rounds = event["rounds"]
    row = {"store": store, **{name: event[name] for name in ("line", "server", "connections")}}
    row |= {
        name: round(median(one[name] for one in rounds), 3) for name in MEDIANS if name in rounds[0]
    }
    answers: Counter[str] = sum((Counter(one["answers"]) for one in rounds), Counter())
    breaches = [breach for one in rounds for breach in one["breaches"]]
    return row | {"answers": dict(answers), "breaches": breaches, "rounds": rounds}


def _ratio(measured: Rounds, line: str, other: str, name: str) -> float | None:
    """The median of the rounds' ratios: what slows the machine down slows both."""
    pairs = zip(measured.get(line, ()), measured.get(other, ()), strict=False)
    ratios = [mine[name] / theirs[name] for mine, theirs in pairs if theirs[name]]
    return round(median(ratios), 3) if ratios else None


def _targets(measured: Rounds) -> Iterator[tuple[str, float | None, bool | None]]:
    """What issue 4 asks of direct sales, what was measured, and whether it is met."""

    def middle(line: str, name: str) -> float | None:
        rounds = measured.get(line)
        return median(one[name] for one in rounds) if rounds else None

    def count(line: str, *kinds: str) -> float | None:
        rounds = measured.get(line)
        return (
            sum(one["answers"].get(kind, 0) for one in rounds for kind in kinds) if rounds else None
        )

    def ratio(line: str, other: str, name: str = "per_second") -> float | None:
        return _ratio(measured, line, other, name)

    limits: list[tuple[str, float | None, str, float]] = [
        ("direct: x reference", ratio("direct", "reference"), ">=", 2.5),
        ("direct: p99, x reference's", ratio("direct", "reference", "p99_ms"), "<=", 0.1),
        (
            "direct: x conditional without a lock",
            ratio("direct", "conditional, no lock"),
            ">=",
            0.65,
        ),
        ("direct: 1,000 buyers, x 50", ratio("direct, 1,000 buyers", "direct"), ">=", 0.8),
        ("sold out: x empty view", ratio("sold out", "empty view"), ">=", 0.8),
        # A worker looks at the row ten times a second, whoever asks.
        ("sold out: queries", middle("sold out", "queries"), "<=", 0.05),
        ("sold out: Redis trips", middle("sold out", "redis_trips"), "<=", 1.05),
        ("queued: accepted, x reference", ratio("queued", "reference"), ">=", 8),
        ("queued: durable, x reference", ratio(SEEN, "reference"), ">=", 6),
        ("queued: until the order is seen, p50 ms", middle(SEEN, "p50_ms"), "<=", 1000),
        ("queued: until the order is seen, p99 ms", middle(SEEN, "p99_ms"), "<=", 3000),
        ("SQLite: buys a second", middle("SQLite", "per_second"), ">=", 150),
        ("SQLite: p99 ms", middle("SQLite", "p99_ms"), "<=", 250),
        ("SQLite: answered by a locked database", count("SQLite", "store_down", "500"), "<=", 0),
    ]
    limits += [
        (f"{line}: orders", rounds[0]["orders"], "=", rounds[0]["pieces"])
        for line, rounds in measured.items()
        if "pieces" in rounds[0]
    ]
    for target, value, sign, limit in limits:
        met = None if value is None else COMPARE[sign](value, limit)
        yield f"{target} {sign} {limit:g}", value, met


def is_sound(report: dict[str, Any]) -> bool:
    """Whether everything was measured and every round's books are right."""
    return not report["missing"] and not any(row["breaches"] for row in report["lines"])


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """The measurements."""
    measured = Table("purchase", box=SIMPLE_HEAD)
    measured.columns[0].no_wrap = True
    measured.add_column("con-\nnections", justify="right")
    for heading, _shape in COLUMNS.values():
        measured.add_column(heading, justify="right")
    measured.add_column("answers")
    measured.add_column("books")
    for row in report["lines"]:
        cells = [
            shape.format(row[name]) if name in row else "" for name, (_, shape) in COLUMNS.items()
        ]
        answers = ", ".join(f"{count} {kind}" for kind, count in row["answers"].items())
        books = "BROKEN" if row["breaches"] else "ok"
        measured.add_row(row["line"], str(row["connections"]), *cells, answers, books)
    yield measured


def markdown(report: dict[str, Any]) -> str:
    """The measurements as docs/reference/benchmarks.md has them."""
    rows = [
        [row["line"], *(COLUMNS[name][1].format(row[name]) if name in row else "" for name in PAGE)]
        for row in report["lines"]
    ]
    headings = ["purchase", *(COLUMNS[name][0] for name in PAGE)]
    measured = page(headings, rows, report["settings"]["rounds"], report["versions"]["mariadb"])
    sums = "\n".join(f"| {' | '.join(line)} |" for line in _sums(report["lines"]))
    return f"{measured}\n{sums}\n"


def _sums(lines: list[Row]) -> Iterator[list[str]]:
    """What machines of two cores can ask for when nothing else is the limit, and what Redis can."""
    costs = {row["line"]: row for row in lines}
    yield ["a second", *(f"{count:,} web machines" for count in MACHINES), "one Redis"]
    yield ["---"] * (len(MACHINES) + 2)
    for line in ("direct", "queued", "sold out"):
        one = 2 * 1000 / costs[line]["worker_cpu_ms"]
        redis = 1e6 / costs[line]["redis_cpu_us"]
        yield [line, *(f"{count * one:,.0f}" for count in MACHINES), f"{redis:,.0f}"]


def remarks(report: dict[str, Any]) -> list[str]:
    """What the books say, what it was measured on, and what could not be had."""
    lines = [f"{row['line']}: {breach}" for row in report["lines"] for breach in row["breaches"]]
    for store, versions in report["versions"].items():
        found = ", ".join(f"{name} {value}" for name, value in versions.items())
        lines.append(f"{store}: {found}")
    return lines + [f"{store}: {why}" for store, why in report["missing"].items()]
