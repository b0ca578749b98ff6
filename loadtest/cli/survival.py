"""Find out which Python lock survives which fault; exit 1 if the control survives too much.

Example: manage.py lab survival --library redis-py --fault kill
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from loadtest.bench.survival.judge import Verdict, agreed
from loadtest.bench.survival.libraries import CONTROL, LIBRARIES
from loadtest.bench.survival.runner import CASES
from loadtest.kernel import marked
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row
from loadtest.kernel.session import Command, events
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.kernel.topology import Topology

RUNNER = "loadtest.bench.survival.runner"
COLUMNS = 6
"""The faults of one table."""


@dataclass(frozen=True, kw_only=True)
class SurvivalParams(Params):
    """The libraries and the faults."""

    libraries: tuple[str, ...] = param(
        tuple(LIBRARIES), "lock", choices=tuple(LIBRARIES), option="library", default_text="all"
    )
    faults: tuple[str, ...] = param(
        tuple(CASES), "fault", choices=tuple(CASES), option="fault", default_text="all"
    )
    repeats: int = param(5, "runs of each lock and fault", limits=(1, 50))


class Survival(Command):
    """The faults that each lock survives."""

    params = SurvivalParams
    part = "lab_survival"

    def run(self, asked: SurvivalParams, bar: Bar) -> Row:
        """Run the libraries on stores of their own; those of PostgreSQL after the others."""
        lines: Row = {name: {"call": LIBRARIES[name].call, "runs": []} for name in asked.libraries}
        report: Row = {"settings": asdict(asked), "missing": {}, "versions": {}, "libraries": lines}
        databases: list[str] = []
        on_postgresql = {name for name in lines if LIBRARIES[name].family == "postgresql"}
        for chosen in filter(None, (lines.keys() - on_postgresql, on_postgresql)):
            families = {LIBRARIES[name].family for name in chosen}
            database = "mariadb" if "mysql" in families else "sqlite"
            topology = Topology(
                database="postgresql" if chosen is on_postgresql else database,
                servers=[one for one in ("redis", "redlock", "zookeeper") if one in families],
                nodes=3,
            )
            wanted = report["settings"] | {"libraries": sorted(chosen)}
            for event in events(RUNNER, wanted, topology, report, bar.show):
                if event["event"] == "library":
                    lines[event["library"]] |= event
                elif event["event"] == "run":
                    lines[event["library"]]["runs"].append(event)
            databases.append(report["versions"].pop("database", ""))
        report["versions"]["database"] = ", ".join(filter(None, databases))
        for line in lines.values():
            line["cells"] = {fault: _cell(line, fault) for fault in asked.faults}
        return report | {"broken_controls": [*_broken_controls(report)]}

    def is_ok(self, report: Row) -> bool:
        """Return True if all servers ran, and the control failed where it must."""
        return not report["missing"] and not report["broken_controls"]

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the table."""
        for headings, rows in _tables(report):
            terminal.table(headings, rows)
        for line in (*report["broken_controls"], *report["missing"].values()):
            terminal.print(terminal.verdict(line, is_expected=False))

    def markdown(self, report: Row) -> str:
        """Return the table and how each lock was called."""
        calls = [
            f"- {name} {line['version']}: `{line['call']}`\n"
            for name, line in report["libraries"].items()
            if line["version"]
        ]
        about = marked.versions(report["versions"])
        repeats = report["settings"]["repeats"]
        when = f"{repeats} runs of each cell on {datetime.now(UTC):%-d %B %Y}, {about}.\n"
        tables = "\n".join(marked.table(*table) for table in _tables(report))
        return f"{tables}\n{when}\n{''.join(calls)}"


def _cell(line: Row, fault: str) -> str:
    runs = [run for run in line["runs"] if run["fault"] == fault]
    found = [Verdict(run["text"], run["survived"], run["figures"]) for run in runs if "text" in run]
    if not found:
        why = line.get("why") or next((run["why"] for run in runs), "its store is missing")
        return f"not run: {why}"
    return agreed(found) + (f"; {len(runs) - len(found)} not run" if len(found) < len(runs) else "")


def _broken_controls(report: Row) -> Iterator[str]:
    for run in report["libraries"].get(CONTROL, {"runs": ()})["runs"]:
        if CASES[run["fault"]].control_fails and run.get("survived", True):
            yield f"{CONTROL} survived {run['fault']}: {run.get('text', run.get('why'))}"


def _tables(report: Row) -> Iterator[tuple[list[str], list[list[str]]]]:
    faults = report["settings"]["faults"]
    for at in range(0, len(faults), COLUMNS):
        some = faults[at : at + COLUMNS]
        lines = report["libraries"].items()
        rows = [[name, *(line["cells"][fault] for fault in some)] for name, line in lines]
        yield ["lock", *(CASES[fault].heading for fault in some)], rows


COMMAND = Survival()
