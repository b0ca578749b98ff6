"""Verify the waiting room of a sale, or simulate lotteries; exit 1 if one is not fair.

Example: manage.py lab fairness spring-sale
"""

import math
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from django.apps import apps

from loadtest.kernel.params import Params, PlanError, param
from loadtest.kernel.report import Row, Target, met
from loadtest.kernel.session import Command
from loadtest.kernel.terminal import Bar, Terminal
from shop.errors import STORE_ERRORS, ShopError

MAX_CORRELATION, MIN_HELD = 0.02, 0.9
MINUTES = 20
CHANCE = 4.0
"""Standard errors that the worst of a few fair lotteries stays below, also of few people."""


@dataclass(frozen=True, kw_only=True)
class Simulation(Params):
    """Lotteries and the sales after them."""

    runs: int | None = param(
        None,
        "number of lotteries and sales to simulate, instead of a sale",
        **{"option": "simulate", "limits": (1, 1000)},
    )
    people: int = param(100_000, "simulation: people on the list", limits=(2, 1_000_000))
    inlet: int | None = param(
        None,
        "simulation: people admitted per minute",
        **{"limits": (1, 1_000_000), "default_text": f"all in {MINUTES} minutes"},
    )
    seed: int = param(1, "simulation: seed of the draws, the pauses and the moments")


class Fairness(Command):
    """`lab fairness`."""

    params = Simulation

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the sale, or the size of the simulation."""
        parser.add_argument("sale", nargs="?", metavar="SALE", help="slug of a sale of this shop")
        super().add_arguments(parser)

    def handle(self, terminal: Terminal, **options: Any) -> int:
        """Simulate, or verify the room of the sale."""
        sale, asked = options["sale"], Simulation.of(options)
        if (sale is None) == (asked.runs is None):
            raise PlanError("Name a sale, or simulate lotteries: --simulate 20.")
        if not apps.is_installed("waiting_room"):
            raise PlanError("This shop has no waiting rooms: WAITING_ROOM=1 installs them.")
        return _verify(terminal, sale) if sale else self.conduct(terminal, asked)

    def run(self, asked: Simulation, bar: Bar) -> Row:
        """Simulate, and judge the draws and the estimates."""
        from loadtest.bench import fairness

        sizes = replace(asked, inlet=asked.inlet or math.ceil(asked.people / MINUTES))
        report = fairness.simulate(**vars(sizes))
        line = {
            "worst": max(map(abs, report["correlations"])),
            "held": fmean(report["estimates_held"]),
        }
        limit = round(max(MAX_CORRELATION, CHANCE * report["standard_error"]), 4)
        targets = (
            Target("worst |rank correlation|", "all", "worst", "<=", limit),
            Target("share of people whose estimate held", "all", "held", ">=", MIN_HELD),
        )
        return report | {"targets": met(targets, {"all": line})}

    def is_ok(self, report: Row) -> bool:
        """Return True if the simulation meets its goals."""
        return all(target["met"] for target in report["targets"])

    def describe(self, terminal: Terminal, report: Row) -> None:
        """Print the figures and the goals."""
        sizes, held = [abs(one) for one in report["correlations"]], report["estimates_held"]
        terminal.print(
            f"|rank correlation| of arrival and position: median {median(sizes):.4f}, worst "
            f"{max(sizes):.4f}; standard error of a fair lottery: {report['standard_error']:.4f}"
        )
        terminal.print(f"Estimates that held: {fmean(held):.1%}, in the worst run {min(held):.1%}")
        terminal.targets(report["targets"])


def _verify(terminal: Terminal, sale: str) -> int:
    from loadtest.bench import fairness
    from waiting_room.models import Room

    try:
        report = fairness.verify(Room.objects.select_related("sale__stock").get(sale__slug=sale))
    except Room.DoesNotExist:
        raise PlanError(f"{sale} is not a sale with a waiting room.") from None
    except (ShopError, *STORE_ERRORS) as error:
        raise PlanError(f"The room of {sale} cannot be read: {error}") from error
    terminal.show(report, _describe)
    return 1 if report["differences"] else 0


def _describe(terminal: Terminal, report: Row) -> None:
    terminal.print(
        f"{report['sale']}, {report['mode']}: {report['people']} people, {report['serving']} "
        f"admitted, {report['buyers']} bought. Rank correlation of arrival and position: "
        f"{report['correlation']:.4f} (standard error of a fair lottery "
        f"{report['standard_error']:.4f})."
    )
    found = report["differences"] or ["The record, the positions and the purchases agree."]
    for line in found:
        terminal.print(terminal.verdict(line, is_expected=not report["differences"]))


COMMAND = Fairness()
