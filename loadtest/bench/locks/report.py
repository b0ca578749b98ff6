"""The benchmark's table, and the targets that this library has set itself."""

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.charts.terminal import page
from loadtest.load.stores import Stores

Row = dict[str, Any]
Rows = dict[str, Row]

COLUMNS = {
    "pairs_per_second": ("pairs/s", "{:.0f}"),
    "to_floor": ("x\nfloor", "{:.2f}"),
    "wave_ms": ("wave\nms", "{:.1f}"),
    "hand_off_ms_p50": ("hand-off\np50 ms", "{:.2f}"),
    "hand_off_ms_p99": ("\np99 ms", "{:.2f}"),
    "worst_wait_ms": ("worst\nwait ms", "{:.0f}"),
    "jain": ("Jain", "{:.2f}"),
    "commands": ("com-\nmands", "{:.1f}"),
    "round_trips": ("trips", "{:.1f}"),
    "pair_cpu_us": ("CPU\nus", "{:.0f}"),
    "waiter_requests": ("5 s\nwait", "{:.0f}"),
    "commands_64_to_8": ("64\nto 8", "{:.2f}"),
    "after_killed_s": ("killed\n+s", "{:.3f}"),
}
FLOOR = {"database": "INSERT + DELETE", "mysql_session": "raw GET_LOCK"}


def bench(asked: Row, progress: Callable[[Row], object]) -> dict[str, Any]:
    """The report of {"backends", "rounds", "peers"}; `progress` hears every event."""
    backends: list[str] = asked["backends"]
    report: dict[str, Any] = {"settings": asked}
    needs_mysql = {"database", "mysql_session"} & set(backends)
    with Stores("mariadb" if needs_mysql else "sqlite", backends) as stores:
        missing = dict(stores.missing)
        if why := missing.pop("database", None):
            missing |= dict.fromkeys(needs_mysql, why)
        report |= {"missing": missing, "versions": {}, "systems": []}
        if len(missing) < len(backends):
            for event in stores.direct("bench", {**asked, "missing": missing}):
                progress(event)
                if event["event"] == "versions":
                    report["versions"] = event["versions"]
                elif event["event"] == "row":
                    report["systems"].append(event["row"])
    rows = {row["system"]: row for row in report["systems"]}
    for row in rows.values():
        _compare_with_floor(row, rows)
    report["targets"] = [
        {"target": target, "value": value, "met": met} for target, value, met in _targets(rows)
    ]
    return report


def _compare_with_floor(row: Row, rows: Rows) -> None:
    floors = [one for one in rows.values() if one["family"] == row["family"]]
    floor = rows.get(FLOOR.get(row["system"], "")) or next(
        (one for one in floors if one["role"] == "floor"), None
    )
    if floor and "pairs_per_second" in row and "pairs_per_second" in floor:
        row["to_floor"] = round(row["pairs_per_second"] / floor["pairs_per_second"], 3)


def _targets(rows: Rows) -> Iterator[tuple[str, float | None, bool | None]]:
    """Each target of an asked backend, what was measured, and whether it is met."""

    def of(system: str, name: str) -> float | None:
        return rows.get(system, {}).get(name)

    def ratio(system: str, other: str, name: str) -> float | None:
        mine, theirs = of(system, name), of(other, name)
        return mine / theirs if mine is not None and theirs else None

    peers = [
        row["worst_wait_ms"]
        for row in rows.values()
        if row["family"] == "redis" and row["role"] == "peer" and "worst_wait_ms" in row
    ]
    limits: list[tuple[str, str, float | None, str, float]] = [
        ("redis", "x floor, uncontended", of("redis", "to_floor"), ">=", 1.5),
        ("redis", "x redis-py Lock", ratio("redis", "redis-py Lock", "pairs_per_second"), ">=", 2),
        ("redis", "wave ms", of("redis", "wave_ms"), "<=", 22),
        ("redis", "hand-off p50 ms", of("redis", "hand_off_ms_p50"), "<=", 0.5),
        ("redis", "hand-off p99 ms", of("redis", "hand_off_ms_p99"), "<=", 1.5),
        (
            "redis",
            "worst wait ms, below every peer's",
            of("redis", "worst_wait_ms"),
            "<=",
            min(peers, default=0),
        ),
        ("redis", "round trips of an acquisition", of("redis", "round_trips"), "<=", 3),
        ("redis", "requests in a 5 s wait", of("redis", "waiter_requests"), "<=", 3),
        ("redis", "commands, 64 to 8 waiters", of("redis", "commands_64_to_8"), "<=", 1.3),
        ("redis", "s after a killed holder's lease", of("redis", "after_killed_s"), "<=", 0.05),
        ("redlock", "x floor, uncontended", of("redlock", "to_floor"), ">=", 0.95),
        ("redlock", "wave ms", of("redlock", "wave_ms"), "<=", 60),
        ("redlock", "ms, two masters stopped", of("redlock", "minority_down_ms"), "<=", 100),
        (
            "zookeeper",
            "x kazoo Lock, uncontended",
            ratio("zookeeper", "kazoo Lock", "pairs_per_second"),
            ">=",
            1.2,
        ),
        ("zookeeper", "wave, x kazoo", ratio("zookeeper", "kazoo Lock", "wave_ms"), "<=", 1),
        (
            "zookeeper",
            "hand-off p50, x kazoo",
            ratio("zookeeper", "kazoo Lock", "hand_off_ms_p50"),
            "<=",
            1,
        ),
        ("zookeeper", "s after the session", of("zookeeper", "after_killed_s"), "<=", 1),
        ("database", "x INSERT + DELETE", of("database", "to_floor"), ">=", 0.8),
        ("mysql_session", "x raw GET_LOCK", of("mysql_session", "to_floor"), ">=", 0.8),
        ("mysql_session", "s after a kill", of("mysql_session", "after_killed_s"), "<=", 0.05),
    ]
    for system, what, value, sign, limit in limits:
        if system in rows:
            met = None if value is None else (value >= limit if sign == ">=" else value <= limit)
            shown = None if value is None else round(value, 3)
            yield f"{system}: {what} {sign} {limit:g}", shown, met


def _cells(row: Row) -> list[str]:
    return [shape.format(row[name]) if name in row else "" for name, (_, shape) in COLUMNS.items()]


def _by_family(report: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    rows = sorted(report["systems"], key=itemgetter("family"))
    return [(family, list(group)) for family, group in groupby(rows, key=itemgetter("family"))]


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """The measurements."""
    measured = Table("lock", box=SIMPLE_HEAD)
    measured.columns[0].no_wrap = True
    for heading, _shape in COLUMNS.values():
        measured.add_column(heading, justify="right")
    for _family, rows in _by_family(report):
        for row in rows:
            mark = {"ours": "*", "floor": "_", "peer": " "}[row["role"]]
            measured.add_row(f"{mark} {row['system']}", *_cells(row))
        measured.add_section()
    yield measured


def markdown(report: dict[str, Any]) -> str:
    """The measurements as docs/reference/benchmarks.md has them."""
    names = {"ours": "**{}**", "floor": "*{}*", "peer": "{}"}
    rows = [
        [names[row["role"]].format(row["system"]), *_cells(row)]
        for _family, rows in _by_family(report)
        for row in rows
    ]
    headings = ["lock", *(heading for heading, _shape in COLUMNS.values())]
    return page(headings, rows, report["settings"]["rounds"], report["versions"])


def is_sound(report: dict[str, Any]) -> bool:
    """Whether every service was there; what a machine's speed changes is only told."""
    return not report["missing"]


def remarks(report: dict[str, Any]) -> list[str]:
    """What was left out, and why."""
    lines = [f"{row['system']}: {row['why']}" for row in report["systems"] if row["why"]]
    return lines + [f"{alias}: {why}" for alias, why in report["missing"].items()]
