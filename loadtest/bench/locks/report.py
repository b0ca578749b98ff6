"""`manage.py lab bench locks`: its table and the targets of this library."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import itemgetter

from loadtest.bench.benchmark import Benchmark, Lines, measure, rounds_param, targets
from loadtest.bench.locks.systems import OURS
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row, Target, met, summary
from loadtest.kernel.terminal import Bar
from loadtest.kernel.topology import Topology
from loadtest.load.plan import SERVERS

FLOOR = {
    "database": "INSERT + DELETE",
    "mysql_session": "raw GET_LOCK",
    "postgresql": "INSERT + DELETE, PostgreSQL",
    "postgresql_session": "raw pg_advisory_lock",
}
"""The floors of a family that has two."""


@dataclass(frozen=True, kw_only=True)
class LocksParams(Params):
    """The backends to measure, beside other libraries or not."""

    backends: tuple[str, ...] = param(
        tuple(OURS), "lock backend", choices=tuple(OURS), option="backend", default_text="all"
    )
    rounds: int = rounds_param(3)
    peers: bool = param(
        True, "skip the comparison with other libraries", option="no-peers", const=False
    )


class Locks(Benchmark):
    """The locks beside the bare commands and other libraries."""

    params = LocksParams
    part = "lab_bench"
    heading = "lock"
    columns = {
        "pairs_per_second": ("pairs/s", "{:.0f}".format),
        "to_floor": ("x\nfloor", "{:.2f}".format),
        "wave_ms": ("wave\nms", "{:.1f}".format),
        "hand_off_ms_p50": ("hand-off\np50 ms", "{:.2f}".format),
        "hand_off_ms_p99": ("\np99 ms", "{:.2f}".format),
        "worst_wait_ms": ("worst\nwait ms", "{:.0f}".format),
        "jain": ("Jain", "{:.2f}".format),
        "commands": ("com-\nmands", "{:.1f}".format),
        "round_trips": ("trips", "{:.1f}".format),
        "pair_cpu_us": ("CPU\nus", "{:.0f}".format),
        "waiter_requests": ("5 s\nwait", "{:.0f}".format),
        "commands_64_to_8": ("64\nto 8", "{:.2f}".format),
        "after_killed_s": ("killed\n+s", "{:.3f}".format),
    }
    in_docs = tuple(columns)
    names = {"ours": ("* {}", "**{}**"), "floor": ("_ {}", "*{}*"), "peer": ("  {}", "{}")}

    def run(self, asked: LocksParams, bar: Bar) -> Row:
        """Measure the backends of each database on stores of their own."""
        report: Row = {"settings": asdict(asked), "missing": {}, "versions": {}}
        stores = {"mysql": "mariadb", "postgresql": "postgresql"}
        by_store: dict[str, list[str]] = {}
        for one in asked.backends:
            by_store.setdefault(stores.get(OURS[one][0], "sqlite"), []).append(one)
        lines: Lines = {}
        databases = []
        for store, backends in by_store.items():
            servers = [one for one in backends if one in SERVERS]
            topology = Topology(database=store, servers=servers, runs_without=True)
            wanted = report["settings"] | {"backends": backends}
            lines |= measure("loadtest.bench.locks.runner", wanted, topology, report, bar.show)
            databases += [report["versions"].pop("database", "")]
            if why := report["missing"].pop("database", None):
                report["missing"] |= dict.fromkeys(backends, why)
        report["versions"]["database"] = ", ".join(filter(None, databases))
        for row in lines.values():
            row |= {"system": row["line"], **summary(row["rounds"], {"worst_wait_ms"})}
        _compare(lines)
        reached = [one for one in targets("locks") if one.line in lines]
        return report | {"systems": [*lines.values()], "targets": met(reached, lines)}

    def rows(self, report: Row) -> list[Row]:
        """Return the systems by family."""
        return sorted(report["systems"], key=itemgetter("family"))

    def wrong(self, report: Row) -> Iterator[str]:
        """Yield the locks of this library that failed."""
        yield from _left_out(report, is_ours=True)

    def notes(self, report: Row) -> Iterator[str]:
        """Yield the other systems that were left out, with the reasons."""
        yield from _left_out(report, is_ours=False)


def _left_out(report: Row, *, is_ours: bool) -> Iterator[str]:
    for row in report["systems"]:
        if row["why"] and (row["role"] == "ours") is is_ours:
            yield f"{row['line']}: {row['why']}"


def _compare(lines: Lines) -> None:
    """Add the ratios to the floor of each family, and to the shortest of its peers' waits."""
    for name, row in lines.items():
        family = [one for one in lines.values() if one["family"] == row["family"]]
        floors = [FLOOR.get(name), *(one["line"] for one in family if one["role"] == "floor")]
        floor = next(one for one in floors if one in lines)
        ratio = Target("", name, "pairs_per_second", other=floor).value(lines)
        if ratio is not None:
            row["to_floor"] = round(ratio, 3)
        peers = [one for one in family if one["role"] == "peer"]
        waits = [one["worst_wait_ms"] for one in peers if "worst_wait_ms" in one]
        if waits and "worst_wait_ms" in row:
            row["worst_wait_to_peers"] = round(row["worst_wait_ms"] / min(waits), 3)
