"""What the four benchmarks share: collecting events, comparing with targets, remarks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import eq, ge, le
from types import MappingProxyType
from typing import Any

from loadtest.kernel.actors import perform
from loadtest.kernel.topology import Topology

Row = dict[str, Any]
Progress = Callable[[Row], object]
Limit = tuple[str, float | None, str, float]
"""A target: its name, the measured value or None, ">=", "<=" or "=", and the limit."""
COMPARE: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, "=": eq}


def events(
    experiment: str, asked: Row, topology: Topology, report: Row, progress: Progress
) -> Iterator[Row]:
    """Run an experiment; yield its events, and pass them to `progress`.

    The report gets the versions of the servers, and the reason for each that is missing.
    """
    for event in perform(experiment, asked, topology):
        progress(event)
        if event["event"] == "versions":
            report["versions"] = event["versions"]
        elif event["event"] == "stores":
            report["missing"] |= event["missing"]
        yield event


def measure(
    experiment: str,
    store: str,
    asked: Row,
    progress: Progress,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Row, dict[str, list[Row]]]:
    """Run a benchmark on a database and a Redis; return its report and the rounds of each line."""
    measured: dict[str, list[Row]] = {}
    report: Row = {"settings": asked, "missing": {}, "versions": {}}
    topology = Topology(database=store, servers=["redis"], environ=dict(environ))
    for event in events(experiment, asked, topology, report, progress):
        if event["event"] == "round":
            measured.setdefault(event["line"], []).append(event["round"])
    return report, measured


def cells(columns: Mapping[str, tuple[str, str]], row: Row) -> list[str]:
    """Return the figures of a row; `columns` are headings and formats by figure."""
    return [shape.format(row[name]) if name in row else "" for name, (_, shape) in columns.items()]


def compare(limits: Iterable[Limit]) -> list[Row]:
    """Return the targets with their values; `met` is None for what was not measured."""
    return [
        {
            "target": f"{name} {sign} {limit:g}",
            "value": None if value is None else round(value, 3),
            "met": None if value is None else COMPARE[sign](value, limit),
        }
        for name, value, sign, limit in limits
    ]


def remarks(report: Row) -> list[str]:
    """Return the versions of the stores and the reasons why stores are missing."""
    found = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    return [found, *(f"{store}: {why}" for store, why in report["missing"].items())]
