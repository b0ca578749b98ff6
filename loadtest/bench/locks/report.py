"""The report of `manage.py lab bench locks`: its table and the targets of this library."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from inventory.management import console
from loadtest.bench.locks.systems import OURS
from loadtest.bench.results import Limit, Progress, Row, cells, compare, events
from loadtest.charts.terminal import page
from loadtest.kernel.topology import Topology
from loadtest.load.plan import BACKENDS

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
FLOOR = {
    "database": "INSERT + DELETE",
    "mysql_session": "raw GET_LOCK",
    "postgresql": "INSERT + DELETE, PostgreSQL",
    "postgresql_session": "raw pg_advisory_lock",
}
"""The floors of a family that has two."""
TARGETS = (
    ("redis", "x floor, uncontended", "to_floor", ">=", 1.5),
    ("redis", "wave ms", "wave_ms", "<=", 22),
    ("redis", "hand-off p50 ms", "hand_off_ms_p50", "<=", 0.5),
    ("redis", "hand-off p99 ms", "hand_off_ms_p99", "<=", 1.5),
    ("redis", "round trips of an acquisition", "round_trips", "<=", 3),
    ("redis", "requests in a 5 s wait", "waiter_requests", "<=", 3),
    ("redis", "commands, 64 to 8 waiters", "commands_64_to_8", "<=", 1.3),
    ("redis", "s after a killed holder's lease", "after_killed_s", "<=", 0.05),
    ("redlock", "x floor, uncontended", "to_floor", ">=", 0.95),
    ("redlock", "wave ms", "wave_ms", "<=", 60),
    ("redlock", "ms, two masters stopped", "minority_down_ms", "<=", 100),
    ("zookeeper", "s after the session", "after_killed_s", "<=", 1),
    ("database", "x INSERT + DELETE", "to_floor", ">=", 0.8),
    ("mysql_session", "x raw GET_LOCK", "to_floor", ">=", 0.8),
    ("mysql_session", "s after a kill", "after_killed_s", "<=", 0.05),
    ("postgresql", "x INSERT + DELETE", "to_floor", ">=", 0.7),
    ("postgresql", "requests in a 5 s wait", "waiter_requests", "<=", 3),
    ("postgresql", "s after a killed holder's lease", "after_killed_s", "<=", 0.05),
    ("postgresql_session", "x raw pg_advisory_lock", "to_floor", ">=", 0.8),
    ("postgresql_session", "requests in a 5 s wait", "waiter_requests", "<=", 3),
    ("postgresql_session", "s after a kill", "after_killed_s", "<=", 0.05),
)
"""System, text, figure, sign, limit."""
PEER_TARGETS = (
    ("redis", "redis-py Lock", "x redis-py Lock", "pairs_per_second", ">=", 2),
    *(
        (f"{one} writer", one, "x plain lock, uncontended", "pairs_per_second", ">=", 0.8)
        for one in ("redis", "zookeeper")
    ),
    ("zookeeper", "kazoo Lock", "x kazoo Lock, uncontended", "pairs_per_second", ">=", 1.2),
    ("zookeeper", "kazoo Lock", "wave, x kazoo", "wave_ms", "<=", 1),
    ("zookeeper", "kazoo Lock", "hand-off p50, x kazoo", "hand_off_ms_p50", "<=", 1),
)
"""System, other system, text, figure, sign, limit of the ratio."""


def bench(asked: Row, progress: Progress) -> dict[str, Any]:
    """Return the report of {"backends", "rounds", "peers"}; `progress` receives every event."""
    report: dict[str, Any] = {"settings": asked, "missing": {}, "versions": {}, "systems": []}
    stores = {"mysql": "mariadb", "postgresql": "postgresql"}
    by_store: dict[str, list[str]] = {}
    for one in asked["backends"]:
        by_store.setdefault(stores.get(OURS[one][0], "sqlite"), []).append(one)
    for store, backends in by_store.items():
        _measure(store, {**asked, "backends": backends}, report, progress)
    rows = {row["system"]: row for row in report["systems"]}
    for row in rows.values():
        _compare_with_floor(row, rows)
    report["targets"] = targets(rows)
    return report


def _measure(store: str, asked: Row, report: dict[str, Any], progress: Progress) -> None:
    """Measure the backends that one database serves, and add to the report."""
    backends, database = asked["backends"], report["versions"].get("database")
    servers = [one for one in backends if BACKENDS.get(one)]
    topology = Topology(database=store, servers=servers, runs_without=True)
    for event in events("bench", asked, topology, report, progress):
        if event["event"] == "row":
            report["systems"].append(event["row"])
    if why := report["missing"].pop("database", None):
        report["missing"] |= dict.fromkeys(backends, why)
    if database and database != report["versions"]["database"]:
        report["versions"] |= {"database": f"{database}, {report['versions']['database']}"}


def _compare_with_floor(row: Row, rows: Rows) -> None:
    floors = [one for one in rows.values() if one["family"] == row["family"]]
    floor = rows.get(FLOOR.get(row["system"], "")) or next(
        (one for one in floors if one["role"] == "floor"), None
    )
    if floor and "pairs_per_second" in row and "pairs_per_second" in floor:
        row["to_floor"] = round(row["pairs_per_second"] / floor["pairs_per_second"], 3)


def targets(rows: Rows) -> list[Row]:
    """Return the targets of the measured backends."""

    def figure(system: str, name: str) -> float | None:
        return rows.get(system, {}).get(name)

    limits: list[Limit] = [
        (f"{system}: {text}", figure(system, name), sign, limit)
        for system, text, name, sign, limit in TARGETS
        if system in rows
    ]
    for system, peer, text, name, sign, limit in PEER_TARGETS:
        ours, theirs = figure(system, name), figure(peer, name)
        ratio = ours / theirs if ours is not None and theirs else None
        if system in rows:
            limits.append((f"{system}: {text}", ratio, sign, limit))
    waits = [
        row["worst_wait_ms"]
        for row in rows.values()
        if row["family"] == "redis" and row["role"] == "peer" and "worst_wait_ms" in row
    ]
    if "redis" in rows:
        text = "redis: worst wait ms, below every peer's"
        limits.append((text, figure("redis", "worst_wait_ms"), "<=", min(waits, default=0)))
    return compare(limits)


def _by_family(report: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    rows = sorted(report["systems"], key=itemgetter("family"))
    return [(family, list(group)) for family, group in groupby(rows, key=itemgetter("family"))]


def table(report: dict[str, Any]) -> tuple[Sequence[str], console.Rows]:
    """Return the measurements, with an empty row between families."""
    marks = {"ours": "*", "floor": "_", "peer": " "}
    lines: list[list[str]] = []
    for _family, rows in _by_family(report):
        lines += [[f"{marks[row['role']]} {row['system']}", *cells(COLUMNS, row)] for row in rows]
        lines.append([])
    return ["lock", *(heading for heading, _shape in COLUMNS.values())], lines[:-1]


def markdown(report: dict[str, Any]) -> str:
    """Return the measurements as a Markdown table for the docs."""
    names = {"ours": "**{}**", "floor": "*{}*", "peer": "{}"}
    rows = [
        [names[row["role"]].format(row["system"]), *cells(COLUMNS, row)]
        for _family, rows in _by_family(report)
        for row in rows
    ]
    headings = ["lock", *(heading for heading, _shape in COLUMNS.values())]
    return page(headings, rows, report["settings"]["rounds"], report["versions"])


def is_sound(report: dict[str, Any]) -> bool:
    """Return True if every service was there; figures that depend on the machine do not count."""
    return not report["missing"]


def remarks(report: dict[str, Any]) -> list[str]:
    """Return the systems and services that were left out, with the reasons."""
    lines = [f"{row['system']}: {row['why']}" for row in report["systems"] if row["why"]]
    return lines + [f"{alias}: {why}" for alias, why in report["missing"].items()]
