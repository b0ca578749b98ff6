"""Benchmark locks, purchases, or the whole journey of a buyer.

Example: manage.py lab bench locks --backend redis --rounds 3
"""

from argparse import ArgumentParser
from functools import partial
from typing import Any

from loadtest.bench.journey import report as journey
from loadtest.bench.locks import report as locks
from loadtest.bench.locks.systems import OURS
from loadtest.bench.purchase import report as purchase
from loadtest.charts import marked
from loadtest.charts.terminal import Terminal, check_file
from loadtest.cli import add_file, add_numbers
from loadtest.load.plan import PlanError, keep_within

SUBJECTS = {
    "locks": locks,
    "purchase": purchase,
    "journey": journey,
}
LIMITS = {
    "rounds": (1, 50),
    "seconds": (0.1, 25),
    "burst": (0.1, 40),
    "buyers": (1, 50_000),
    "offered": (1, 25_000),
    "attempts": (1, 200_000),
}
PURCHASE: dict[str, tuple[float, str]] = {
    "seconds": (4.0, "duration of a round, in seconds"),
    "burst": (30.0, "duration of a round of a queued sale, in seconds"),
    "buyers": (6000, "number of buyers per round, one purchase each"),
    "offered": (2500, "buyers prepared for each second of a burst"),
    "attempts": (100_000, "attempts per write strategy, for 1 %% as many units"),
}
"""The default and the meaning of the options of the purchase benchmark."""
OWN = {
    "locks": {"backends": "--backend", "no_peers": "--no-peers"},
    "purchase": {name: f"--{name}" for name in PURCHASE},
    "journey": {"parts": "--part"},
}
"""Options that only these subjects have."""
PARTS = {
    "locks": "lab_bench",
    "purchase": "lab_bench_purchase",
    "journey": "lab_bench_journey",
}
"""The markers in docs/ between which the tables are written."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the subject, its size, and the output."""
    parser.add_argument(
        "subject",
        nargs="?",
        choices=SUBJECTS,
        default="locks",
        help="locks (default), purchase: over HTTP, compared with the reference implementation, "
        "journey: the cost of a buyer, request by request",
    )
    rounds = "rounds; the median is reported (default: 3 for locks, else 5)"
    add_numbers(parser, [("rounds", None, rounds)])
    markers = " or ".join(PARTS.values())
    add_file(parser, "write", f"also write the table to FILE, between the markers {markers}")
    of_locks = parser.add_argument_group("locks")
    of_locks.add_argument(
        "--backend",
        action="append",
        dest="backends",
        choices=OURS,
        metavar="NAME",
        help=f"lock backend, may be repeated: {', '.join(OURS)} (default: all)",
    )
    of_locks.add_argument(
        "--no-peers",
        action="store_const",
        const=True,
        help="skip the comparison with other libraries",
    )
    of_purchase = parser.add_argument_group("purchase")
    for name, (default, meaning) in PURCHASE.items():
        text = f"{meaning} (default: {default:g})"
        of_purchase.add_argument(f"--{name}", type=type(default), help=text)
    of_journey = parser.add_argument_group("journey")
    of_journey.add_argument(
        "--part",
        action="append",
        dest="parts",
        choices=journey.PARTS,
        help=f"what to measure, may be repeated: {', '.join(journey.PARTS)} (default: all)",
    )


def handle(terminal: Terminal, *, subject: str, rounds: int | None, **options: Any) -> int:
    """Measure the subject; return 1 if the report is not sound."""
    given = {name for name, value in options.items() if value is not None}
    for other, own in OWN.items():
        foreign = own.keys() - OWN.get(subject, {}).keys()
        if wrong := [text for name, text in own.items() if name in foreign & given]:
            raise PlanError(f"{wrong[0]} belongs to `lab bench {other}`, not {subject}.")
    asked: dict[str, Any] = {"rounds": rounds}
    if rounds is None:
        asked["rounds"] = 3 if subject == "locks" else 5
    if subject == "locks":
        backends = list(dict.fromkeys(options["backends"] or OURS))
        asked |= {"backends": backends, "peers": not options["no_peers"]}
    elif subject == "journey":
        asked |= {"parts": options["parts"] or [*journey.PARTS]}
    else:
        for name in PURCHASE:
            asked[name] = PURCHASE[name][0] if options[name] is None else options[name]
    keep_within(LIMITS, asked)
    check_file("write", options["write"], PARTS[subject])
    measured = SUBJECTS[subject]
    with terminal.bar() as bar:
        result = measured.bench(asked, bar.show)
    is_sound: bool = measured.is_sound(result)
    if options["write"] and is_sound:
        marked.write(options["write"], PARTS[subject], measured.markdown(result))
    terminal.show(result, partial(_describe, measured))
    return 0 if is_sound else 1


def _describe(measured: Any, terminal: Terminal, result: dict[str, Any]) -> None:
    terminal.table(*measured.table(result))
    if result["targets"]:
        terminal.table(("target", "measured", "met"), map(terminal.target, result["targets"]))
    for line in measured.remarks(result):
        terminal.print(line)
