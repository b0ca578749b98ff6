"""Test a whole shop: restarts under load, failed and slow stores.

Example: manage.py lab endure recovery --rounds 1
"""

import json
from argparse import ArgumentParser
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.kernel.params import Params, add_file, param
from loadtest.kernel.session import Command, Row, events
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.kernel.topology import Topology
from loadtest.load.http.load import MOST_BUYERS


@dataclass(frozen=True, kw_only=True)
class EnduranceParams(Params):
    """The size of an experiment."""

    attempts: int = param(100_000, "restarts: number of purchases to send", limits=(100, 1_000_000))
    stock: int = param(1000, "restarts: units on sale", limits=(10, MOST_BUYERS // 2))
    rounds: int = param(3, "recovery: how many times each fault is injected", limits=(1, 1000))


class Endurance(Command):
    """An experiment on a whole shop."""

    def __init__(
        self,
        what: str,
        servers: tuple[str, ...] = ("redis",),
        *,
        experiment: str = "",
        # No order expires, because the units sold are counted.
        pay_within: int = 86_400,
        params: type[Params] = EnduranceParams,
        **stores: Any,
    ) -> None:
        self.what, self.params = what, params
        self.experiment = experiment or f"loadtest.resilience.{what}"
        self.part = f"lab_endure_{what}"
        self.topology = Topology(
            database="mariadb",
            servers=servers,
            is_deployed=True,
            environ={
                "BUY_LIMIT": "1000000/second",
                "PAY_WITHIN_SECONDS": str(pay_within),
                "UNPAID_LIMIT": "0",  # a hundred buyers leave thousands of orders
            },
            **stores,
        )

    def run(self, asked: Any, bar: Bar) -> Row:
        """Run the experiment on private stores; raise ExperimentFailed if one is missing."""
        found: Row = {"settings": asdict(asked), "what": self.what}
        for event in events(self.experiment, found["settings"], self.topology, {}, bar.show):
            if event["event"] == "report":
                found |= event["report"]
        return found

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the report."""
        terminal.print(json.dumps(report, indent=1))
        is_ok = self.is_ok(report)
        terminal.print(terminal.verdict(f"Verdict: {report['verdict']}", is_expected=is_ok))

    def markdown(self, report: Row) -> str:
        """Return the report as a block of code."""
        return f"```json\n{json.dumps(report, indent=1)}\n```\n"


COMMANDS = {
    "restarts": Endurance("restarts"),
    "recovery": Endurance("recovery", ("redis", "zookeeper"), proxied=["redis"], is_durable=True),
    "slow": Endurance("slow", proxied=["database", "redis"]),
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the experiment and its size."""
    parser.add_argument(
        "what",
        choices=COMMANDS,
        metavar="EXPERIMENT",
        help="restarts: each process restarts under load; recovery: Redis and ZooKeeper fail and "
        "return; slow: a store responds late or not at all",
    )
    EnduranceParams.add_options(parser)
    add_file(parser, "write", "also write it between FILE's markers lab_endure_<experiment>")


def handle(terminal: Terminal, *, what: str, **options: Any) -> int:
    """Run the experiment; return 1 unless its verdict is ok."""
    return COMMANDS[what].handle(terminal, **options)
