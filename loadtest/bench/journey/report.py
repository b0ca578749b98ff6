"""`manage.py lab bench journey`: its tables and its targets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from loadtest.bench.benchmark import Benchmark, Lines, measure, rounds_param, targets
from loadtest.kernel import marked
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row, met, summary
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
        wanted = [one for part in ("requests", "crowds") if part in parts for one in targets(part)]
        if rows := report["growth"]["rows"]:
            slowest = {row["what"]: row["ms"] for row in reversed(rows)}
            expiry = next(row["ms"] for row in rows if row["name"].endswith("expire_unpaid_orders"))
            expired = 1000 * report["growth"]["expiring"] / expiry
            lines["growth"] = {**slowest, "expired": expired}
            wanted += targets("growth")
        return met(wanted, lines)

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
        for one in targets("crowds")
        if one.line in lines
    ]
    yield ("crowd", "figure", "measured"), crowds
    rows = report["growth"]["rows"][:SHOWN]
    growth = [[row["name"], f"{row['ms']:.1f}", str(row["queries"])] for row in rows]
    yield ("slowest at 300,000 orders", "ms", "queries"), growth


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
