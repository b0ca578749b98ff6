"""`manage.py lab bench purchase`: its stores, its table and its targets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from loadtest.bench.benchmark import Benchmark, Lines, measure, rounds_param, targets
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row, Target, met, summary
from loadtest.kernel.terminal import Bar
from loadtest.kernel.topology import Topology

ENVIRON = {
    "DJANGO_SETTINGS_MODULE": "loadtest.bench.purchase.reference_settings",
    "BUY_LIMIT": "1000000/second",  # a few buyers cause all the refusals
}
SEEN = "queued, orders written and seen"


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
        wanted = targets("purchase")
        for name, row in lines.items():
            row["locked"] = sum(row["answers"].get(kind, 0) for kind in ("store_down", "500"))
            ratio = Target("", name, "per_second", other="reference").value(lines)
            if ratio and row["store"] == "mariadb":
                row["to_reference"] = round(ratio, 3)
            if "pieces" in row:
                wanted.append(Target(f"{name}: orders", name, "orders", "=", row["pieces"]))
        return report | {"lines": [*lines.values()], "targets": met(wanted, lines)}

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
