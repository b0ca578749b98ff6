"""`manage.py lab bench purchase`: its stores, its table and its targets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from loadtest.bench.benchmark import Benchmark, Lines, measure, rounds_param
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row, Target, met, summary
from loadtest.kernel.terminal import Bar
from loadtest.kernel.topology import Topology

ENVIRON = {
    "DJANGO_SETTINGS_MODULE": "loadtest.bench.purchase.reference_settings",
    "BUY_LIMIT": "1000000/second",  # a few buyers cause all the refusals
}
SEEN, NO_LOCK = "queued, orders written and seen", "conditional, no lock"
TARGETS = [
    Target("direct: x reference", "direct", "per_second", ">=", 4.5, "reference"),
    Target("direct: p99, x reference's", "direct", "p99_ms", "<=", 0.1, "reference"),
    Target("direct: x conditional without a lock", "direct", "per_second", ">=", 0.65, NO_LOCK),
    Target(
        "direct: 1,000 buyers, x 50", "direct, 1,000 buyers", "per_second", ">=", 0.95, "direct"
    ),
    Target(
        "direct: PostgreSQL, x MariaDB", "direct, PostgreSQL", "per_second", ">=", 0.8, "direct"
    ),
    Target("sold out: x empty view", "sold out", "per_second", ">=", 0.9, "empty view"),
    Target("queued: accepted, x reference", "queued", "per_second", ">=", 9, "reference"),
    Target("queued: durable, x reference", SEEN, "per_second", ">=", 8, "reference"),
    Target("direct: worker CPU, x empty view", "direct", "worker_cpu_ms", "<=", 2.3, "empty view"),
    Target("queued: worker CPU, x empty view", "queued", "worker_cpu_ms", "<=", 1.3, "empty view"),
    # A worker reads the row ten times a second, however many requests there are.
    Target("sold out: queries", "sold out", "queries", "<=", 0.05),
    Target("sold out: Redis trips", "sold out", "redis_trips", "<=", 1.05),
    Target("queued: until the order is seen, p50 ms", SEEN, "p50_ms", "<=", 1000),
    Target("queued: until the order is seen, p99 ms", SEEN, "p99_ms", "<=", 3000),
    Target("SQLite: buys a second", "SQLite", "per_second", ">=", 600),
    Target("SQLite: p99 ms", "SQLite", "p99_ms", "<=", 250),
    Target("SQLite: answered by a locked database", "SQLite", "locked", "<=", 0),
]


@dataclass(frozen=True, kw_only=True)
class PurchaseParams(Params):
    """The load of each round."""

    rounds: int = rounds_param(5)
    seconds: float = param(4.0, "duration of a round, in seconds", limits=(0.1, 25))
    burst: float = param(30.0, "duration of a round of a queued sale, in seconds", limits=(0.1, 40))
    buyers: int = param(6000, "number of buyers per round, one purchase each", limits=(1, 50_000))
    offered: float = param(2500.0, "buyers prepared for each second of a burst", limits=(1, 25_000))
    attempts: int = param(
        100_000, "attempts per write strategy, for 1 %% as many units", limits=(1, 200_000)
    )


class Purchase(Benchmark):
    """Purchases over HTTP, compared with the reference implementation."""

    params = PurchaseParams
    part = "lab_bench_purchase"
    heading = "purchase"
    columns = {
        "connections": ("con-\nnections", "{}".format),
        "per_second": ("a\nsecond", "{:.0f}".format),
        "to_reference": ("x ref-\nerence", "{:.2f}".format),
        "p50_ms": ("p50\nms", "{:.1f}".format),
        "p99_ms": ("p99\nms", "{:.1f}".format),
        "worker_cpu_ms": ("worker\nCPU ms", "{:.2f}".format),
        "queries": ("quer-\nies", "{:.2f}".format),
        "redis_trips": ("Redis\ntrips", "{:.2f}".format),
        "redis_cpu_us": ("Redis\nCPU us", "{:.0f}".format),
        "driver_cores": ("driver\ncores", "{:.2f}".format),
        "breaches": ("ledger", lambda found: "BROKEN" if found else "ok"),
        "answers": ("answers", lambda of: ", ".join(f"{n} {kind}" for kind, n in of.items())),
    }
    in_docs = ("per_second", "to_reference", "p99_ms", "worker_cpu_ms", "redis_cpu_us")

    def run(self, asked: PurchaseParams, bar: Bar) -> Row:
        """Measure the lines of each database on stores of their own."""
        settings = asdict(asked)
        report: Row = {"settings": settings, "missing": {}, "versions": {}}
        lines: Lines = {}
        for store in ("mariadb", "postgresql", "sqlite"):
            topology = Topology(
                database=store, servers=["redis"], environ=ENVIRON, is_deployed=True
            )
            one: Row = {"missing": report["missing"], "versions": {}}
            found = measure("loadtest.bench.purchase.runner", settings, topology, one, bar.show)
            for name, row in found.items():
                lines[name] = {"store": store, **row, **summary(row["rounds"])}
            report["missing"], report["versions"][store] = one["missing"], one["versions"]
        targets = list(TARGETS)
        for name, row in lines.items():
            row["locked"] = sum(row["answers"].get(kind, 0) for kind in ("store_down", "500"))
            ratio = Target("", name, "per_second", "=", None, "reference").value(lines)
            if ratio and row["store"] == "mariadb":
                row["to_reference"] = round(ratio, 3)
            if "pieces" in row:
                targets.append(Target(f"{name}: orders", name, "orders", "=", row["pieces"]))
        return report | {"lines": [*lines.values()], "targets": met(targets, lines)}

    def wrong(self, report: Row) -> Iterator[str]:
        """Yield the breaches of all ledgers, and the lines of which no answer counts."""
        for row in report["lines"]:
            yield from (f"{row['line']}: {breach}" for breach in row["breaches"])
            if not row["per_second"]:
                answers = self.columns["answers"][1](row["answers"])
                yield f"{row['line']}: only {answers}"

    def notes(self, report: Row) -> Iterator[str]:
        """Yield a remark if the shop was faster than the load that was prepared for it."""
        asked = report["settings"]
        rounds = next((row["rounds"] for row in report["lines"] if row["line"] == SEEN), ())
        shortest = min((one["load_seconds"] for one in rounds), default=asked["burst"])
        if shortest < asked["burst"]:
            yield (
                f"{SEEN}: after {shortest:g} of {asked['burst']:g} s, all buyers had sent their "
                "form. Rates are those of the time under load. To make it longer, offer more than "
                f"--offered={asked['offered']:g} a second."
            )

    def markdown(self, report: Row) -> str:
        """Return the table and its notes."""
        measured = super().markdown(report | {"versions": report["versions"]["mariadb"]})
        return "".join([measured, *(f"\n{line}\n" for line in self.notes(report))])
