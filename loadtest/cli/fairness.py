"""Verify the waiting room of a sale, or simulate lotteries; exit 1 if one is not fair.

Example: manage.py lab fairness spring-sale
"""

import math
from argparse import ArgumentParser
from statistics import fmean, median
from typing import Any

from django.apps import apps

from loadtest.bench.results import Limit, Row, compare
from loadtest.charts.terminal import Terminal
from loadtest.cli import add_numbers
from loadtest.load.plan import PlanError, keep_within
from shop.errors import STORE_ERRORS, ShopError

LIMITS = {"simulate": (1, 1000), "people": (2, 1_000_000), "inlet": (1, 1_000_000)}
MAX_CORRELATION, MIN_HELD = 0.02, 0.9
MINUTES = 20
CHANCE = 4.0
"""Standard errors that the worst of a few fair lotteries stays below, also of few people."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sale, or the size of the simulation."""
    parser.add_argument("sale", nargs="?", metavar="SALE", help="slug of a sale of this shop")
    add_numbers(
        parser,
        (
            ("simulate", None, "number of lotteries and sales to simulate, instead of a sale"),
            ("people", 100_000, "simulation: people on the list"),
            ("inlet", None, "simulation: people admitted per minute (default: all in 20 minutes)"),
            ("seed", 1, "simulation: seed of the draws, the pauses and the moments"),
        ),
    )


def handle(
    terminal: Terminal, *, sale: str | None, simulate: int | None, seed: int, **options: Any
) -> int:
    """Print the report; return 1 on any difference or missed goal."""
    if (sale is None) == (simulate is None):
        raise PlanError("Name a sale, or simulate lotteries: --simulate 20.")
    if not apps.is_installed("waiting_room"):
        raise PlanError("This shop has no waiting rooms: WAITING_ROOM=1 installs them.")
    from loadtest.bench import fairness
    from waiting_room.models import Room

    if simulate is not None:
        people, inlet = options["people"], options["inlet"]
        asked = {"people": people, "inlet": math.ceil(people / MINUTES) if inlet is None else inlet}
        keep_within(LIMITS, {"simulate": simulate, **asked})
        report = fairness.simulate(runs=simulate, seed=seed, **asked)
        report["targets"] = targets(report)
        terminal.show(report, _describe_simulation)
        return 0 if all(target["met"] for target in report["targets"]) else 1
    try:
        room = Room.objects.select_related("sale__stock").get(sale__slug=sale)
        report = fairness.verify(room)
    except Room.DoesNotExist:
        raise PlanError(f"{sale} is not a sale with a waiting room.") from None
    except (ShopError, *STORE_ERRORS) as error:
        raise PlanError(f"The room of {sale} cannot be read: {error}") from error
    terminal.show(report, _describe)
    return 1 if report["differences"] else 0


def targets(report: Row) -> list[Row]:
    """Return the goals of a simulation, and whether it meets them."""
    worst = max(map(abs, report["correlations"]))
    limit = round(max(MAX_CORRELATION, CHANCE * report["standard_error"]), 4)
    held = fmean(report["estimates_held"])
    limits: list[Limit] = [
        ("worst |rank correlation|", worst, "<=", limit),
        ("share of people whose estimate held", held, ">=", MIN_HELD),
    ]
    return compare(limits)


def _describe_simulation(terminal: Terminal, report: Row) -> None:
    sizes, held = [abs(one) for one in report["correlations"]], report["estimates_held"]
    terminal.print(
        f"|rank correlation| of arrival and position: median {median(sizes):.4f}, worst "
        f"{max(sizes):.4f}; standard error of a fair lottery: {report['standard_error']:.4f}"
    )
    terminal.print(f"Estimates that held: {fmean(held):.1%}, in the worst run {min(held):.1%}")
    terminal.table(("target", "measured", "met"), map(terminal.target, report["targets"]))


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
