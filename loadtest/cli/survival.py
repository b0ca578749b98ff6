"""Find out which Python lock survives which fault; exit 1 if the control survives too much.

Example: manage.py lab survival --library redis-py --fault kill
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date

from loadtest.bench.survival.judge import JUDGES, Verdict, agreed
from loadtest.bench.survival.libraries import CONTROL, LIBRARIES
from loadtest.kernel import marked
from loadtest.kernel.params import Params, param
from loadtest.kernel.report import Row
from loadtest.kernel.session import Command, events
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.kernel.topology import Topology

HEADINGS = {
    "kill": "holder killed: next",
    "pause": "holder paused, writes late",
    "work": "works for two leases",
    "late-release": "releases late: successor's lock",
    "restart": "store restarts",
    "order": "64 waiters",
    "lost-reply": "reply to acquire lost",
}
NAIVE_FAILS = ("pause", "work", "late-release", "restart", "order")
"""The faults that the control must not survive."""
SERVERS = {"redis": "redis", "redlock": "redlock", "zookeeper": "zookeeper"}


@dataclass(frozen=True, kw_only=True)
class SurvivalParams(Params):
    """The libraries and the faults."""

    libraries: tuple[str, ...] = param(
        tuple(LIBRARIES), "lock", choices=tuple(LIBRARIES), option="library", default_text="all"
    )
    faults: tuple[str, ...] = param(
        tuple(JUDGES), "fault", choices=tuple(JUDGES), option="fault", default_text="all"
    )
    repeats: int = param(5, "runs of each lock and fault", limits=(1, 50))


class Survival(Command):
    """The faults that each lock survives."""

    params = SurvivalParams
    part = "lab_survival"

    def run(self, asked: SurvivalParams, bar: Bar) -> Row:
        """Run the libraries of PostgreSQL on stores of their own, the others together."""
        report: Row = {"settings": asdict(asked), "missing": {}, "versions": {}, "libraries": {}}
        total = len(asked.libraries) * len(asked.faults) * asked.repeats
        for is_postgresql in (False, True):
            chosen = [
                name
                for name in asked.libraries
                if (LIBRARIES[name].family == "postgresql") == is_postgresql
            ]
            if not chosen:
                continue
            families = {LIBRARIES[name].family for name in chosen}
            database = "mariadb" if "mysql" in families else "sqlite"
            topology = Topology(
                database="postgresql" if is_postgresql else database,
                servers=[SERVERS[one] for one in sorted(families) if one in SERVERS],
            )
            wanted = report["settings"] | {"libraries": chosen}
            versions = dict(report["versions"])
            for event in events("survival", wanted, topology, report, lambda event: None):
                line = report["libraries"].setdefault(event.get("library", ""), {"runs": []})
                if event["event"] == "library":
                    line |= event
                elif event["event"] == "run":
                    line["runs"].append(event)
                    done = sum(len(one["runs"]) for one in report["libraries"].values())
                    bar.draw(f"{event['library']}: {event['fault']}", done, total)
            report["versions"] = versions | report["versions"]
        report["libraries"].pop("", None)
        for name, line in report["libraries"].items():
            line["cells"] = {fault: _cell(line, fault) for fault in asked.faults}
            line["call"] = LIBRARIES[name].call
        return report | {"broken_controls": [*_broken_controls(report)]}

    def is_ok(self, report: Row) -> bool:
        """Return True if all servers ran, and the control failed where it must."""
        return not report["missing"] and not report["broken_controls"]

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the table."""
        terminal.table(*_table(report))
        for line in (*report["broken_controls"], *map(str, report["missing"].values())):
            terminal.print(terminal.verdict(line, is_expected=False))

    def markdown(self, report: Row) -> str:
        """Return the table and how each lock was called."""
        calls = (
            f"- {name} {line.get('version', '')}".rstrip() + f": `{line['call']}`\n"
            for name, line in report["libraries"].items()
            if name != CONTROL
        )
        about = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
        repeats = report["settings"]["repeats"]
        when = f"{repeats} runs of each cell on {date.today():%-d %B %Y}, {about}.\n"
        return f"{marked.table(*_table(report))}\n{when}\n{''.join(calls)}"


def _cell(line: Row, fault: str) -> str:
    if why := line.get("why"):
        return f"not run: {why}"
    runs = [run for run in line["runs"] if run["fault"] == fault]
    whys = {run["why"] for run in runs if "why" in run}
    found = [_verdict(run) for run in runs if "why" not in run]
    missed = f" (not run {len(runs) - len(found)} times: {', '.join(whys)})" if whys else ""
    return agreed(found) + missed


def _verdict(run: Row) -> Verdict:
    return Verdict(run["text"], run["survived"], run["figures"])


def _broken_controls(report: Row) -> Iterator[str]:
    for run in report["libraries"].get(CONTROL, {"runs": []})["runs"]:
        if run["fault"] in NAIVE_FAILS and run.get("survived", True):
            yield f"{CONTROL} survived {run['fault']}: {run.get('text', run.get('why'))}"


def _table(report: Row) -> tuple[list[str], list[list[str]]]:
    faults = report["settings"]["faults"]
    rows = [[name, *line["cells"].values()] for name, line in report["libraries"].items()]
    return ["lock", *(HEADINGS[fault] for fault in faults)], rows


COMMAND = Survival()
