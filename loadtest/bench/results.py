"""What the four benchmarks share: collecting events, comparing with targets, remarks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import eq, ge, le
from types import MappingProxyType
from typing import Any

from loadtest.load.stores import PrivateStores

Row = dict[str, Any]
Progress = Callable[[Row], object]
Limit = tuple[str, float | None, str, float]
"""A target: its name, the measured value or None, ">=", "<=" or "=", and the limit."""
COMPARE: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, "=": eq}


def events(
    stores: PrivateStores, experiment: str, asked: Row, report: Row, progress: Progress
) -> Iterator[Row]:
    """Run an experiment; yield its events, pass them to `progress`, and keep the versions."""
    for event in stores.run_experiment(experiment, asked):
        progress(event)
        if event["event"] == "versions":
            report["versions"] = event["versions"]
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
    with PrivateStores(store, ["redis"]) as stores:
        stores.environ.update(environ)
        report: Row = {"settings": asked, "missing": stores.missing, "versions": {}}
        for event in () if stores.missing else events(stores, experiment, asked, report, progress):
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
