"""`manage.py lab bench journey`: its tables and its targets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from loadtest.bench.benchmark import Benchmark, Lines, measure, rounds_param
from loadtest.bench.journey import READERS, SIGN_INS, TABS, WITH, WITHOUT, ZIPPED
from loadtest.kernel import marked
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row, Target, met, summary
from loadtest.kernel.terminal import Bar
from loadtest.kernel.topology import Topology

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
NOTHING = 0.05
"""Multiple of /livez up to which a request behind nginx costs Python nothing."""
PAGES = ("home", "sale", "sale before the opening")
REQUESTS = [
    target
    for line, python, nginx in (
        *((name, 1, NOTHING) for name in PAGES),
        *((f"{name}, signed in", 6, None) for name in PAGES),
        *((f"poll of {name.replace('sale', 'stock')}", 1, NOTHING) for name in PAGES),
        ("/learn/", 2.5, NOTHING),
        ("sign-in", 65, None),
        (WITH, 130, None),
        (WITHOUT, 60, None),
    )
    for target in (
        Target(f"{line}: x /livez", line, "x", "<=", python),
        Target(f"{line}: behind nginx, x /livez", line, "nginx_x", "<=", nginx),
    )
]
"""Limits in Python and behind nginx, as multiples of /livez."""
CROWDS = [
    Target(f"{line}: {meaning}", line, figure, sign, limit)
    for line, figure, meaning, sign, limit in (
        (READERS, "per_second", "requests a second", ">=", 20_000),
        (READERS, "cores", "cores of Python", "<=", 0.02),
        (ZIPPED, "per_second", "requests a second", ">=", None),
        (TABS, "offered", "polls a second", ">=", None),
        (TABS, "per_second", "of these, served", ">=", None),
        (TABS, "cores", "cores of Python that the polls need", "<=", 0.1),
        (SIGN_INS, "refused", "refused, in the worst round", "<=", 0),
        (SIGN_INS, "seconds", "seconds until all have a response", "<=", None),
        (SIGN_INS, "alone_per_second", "purchases a second without them", ">=", None),
        (SIGN_INS, "per_second", "purchases a second meanwhile", ">=", None),
        (SIGN_INS, "alone_p99_ms", "p99 of purchases without them, ms", "<=", None),
        (SIGN_INS, "p99_ms", "p99 of purchases meanwhile, ms", "<=", None),
        (SIGN_INS, "p99_ratio", "ratio of the two", "<=", 1.5),
    )
]
GROWTH = [
    Target("grown shop: slowest page, ms", "growth", "page", "<=", 100),
    Target("grown shop: audit of the sale of 100,000 orders, ms", "growth", "service", "<=", 250),
    Target("grown shop: orders expired a second", "growth", "expired", ">=", 1000),
]
SHOWN = 8
"""Pages and jobs of the grown shop in the table, the slowest first; JSON has all."""


@dataclass(frozen=True, kw_only=True)
class JourneyParams(Params):
    """The parts to measure, each on stores of its own."""

    rounds: int = rounds_param(5)
    parts: tuple[str, ...] = param(
        PARTS, "part to measure", choices=PARTS, option="part", default_text="all"
    )


class Journey(Benchmark):
    """The cost of a buyer, request by request; crowds; and the pages of a shop that has grown."""

    params = JourneyParams
    part = "lab_bench_journey"
    heading = "request"
    columns = {
        "ms": ("worker\nCPU ms", "{:.2f}".format),
        "x": ("x\n/livez", "{:.1f}".format),
        "queries": ("quer-\nies", "{:.1f}".format),
        "redis": ("Redis\nmessages", "{:.1f}".format),
        "bytes": ("bytes", "{:,.0f}".format),
        "nginx_ms": ("behind\nnginx, ms", "{:.3f}".format),
        "nginx_x": ("behind nginx,\nx /livez", "{:.2f}".format),
        "times": ("in five\nminutes", "{:.0f}".format),
    }
    in_docs = ("ms", "x", "nginx_x", "bytes", "times")

    def run(self, asked: JourneyParams, bar: Bar) -> Row:
        """Measure each part."""
        report: Row = {"settings": asdict(asked), "missing": {}, "versions": {}}
        lines: Lines = {}
        for part in asked.parts:
            topology = Topology(database="mariadb", servers=["redis"], environ=ENVIRON)
            wanted = report["settings"] | SIZES | {"part": part}
            lines |= measure("loadtest.bench.journey.runner", wanted, topology, report, bar.show)
        growth = lines.pop("growth", {"rounds": [{"rows": [], "expiring": 0}]})["rounds"][0]
        for row in lines.values():
            row |= summary(row["rounds"], {"refused"})
        report |= {"lines": [*lines.values()], "growth": growth}
        return report | {"targets": self.targets(report)}

    def targets(self, report: Row) -> list[Row]:
        """Return the targets of the parts that are asked for."""
        parts, lines = report["settings"]["parts"], {row["line"]: row for row in report["lines"]}
        targets = (REQUESTS if "requests" in parts else []) + (CROWDS if "crowds" in parts else [])
        if rows := report["growth"]["rows"]:
            slowest = {row["what"]: row["ms"] for row in reversed(rows)}
            expiry = next(row["ms"] for row in rows if row["name"].endswith("expire_unpaid_orders"))
            expired = 1000 * report["growth"]["expiring"] / expiry
            lines["growth"] = {**slowest, "expired": expired}
            targets += GROWTH
        return met(targets, lines)

    def wrong(self, report: Row) -> Iterator[str]:
        """Yield the requests that were not answered as they should be."""
        for row in report["lines"]:
            yield from (f"{row['line']}: {answer}" for answer in row["wrong"])
        for row in report["growth"]["rows"]:
            if row.get("status", 200) >= 400:
                yield f"{row['name']}: {row['status']}"

    def notes(self, report: Row) -> Iterator[str]:
        """Yield the rows of the other tables."""
        yield from (": ".join(row) for _headings, rows in _tables(report) for row in rows)

    def markdown(self, report: Row) -> str:
        """Return all tables."""
        others = [marked.table(*table) for table in _tables(report) if table[1]]
        return "\n".join([super().markdown(report), *others])


def _tables(report: Row) -> Iterator[tuple[tuple[str, ...], list[list[str]]]]:
    """Yield the figures of the crowds and those of the grown shop."""
    lines = {row["line"]: row for row in report["lines"]}
    crowds = [
        [one.line, one.text.removeprefix(f"{one.line}: "), _shown(lines[one.line][one.figure])]
        for one in CROWDS
        if one.line in lines
    ]
    yield ("crowd", "figure", "measured"), crowds
    rows = report["growth"]["rows"][:SHOWN]
    growth = [[row["name"], f"{row['ms']:.1f}", str(row["queries"])] for row in rows]
    yield ("slowest at 300,000 orders", "ms", "queries"), growth


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
