"""Measure the locks and their peers, a purchase, a cached value's rebuild, idempotency keys."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from loadtest.bench import caches, keys
from loadtest.bench.locks import report as locks
from loadtest.bench.purchase import report as purchase
from loadtest.charts import marked
from loadtest.charts.terminal import Bar, Terminal, check_file
from loadtest.cli import JSON_HELP
from loadtest.load.plan import BACKENDS, PlanError, keep_within

PAGE_WIDTH = 160
BENCHED = [alias for alias in BACKENDS if alias not in ("none", "process")]
SUBJECTS = {"locks": locks, "purchase": purchase, "cache": caches, "keys": keys}
LIMITS = {
    "rounds": (1, 50),
    "seconds": (0.1, 25),
    "burst": (0.1, 40),
    "buyers": (1, 50_000),
    "attempts": (1, 200_000),
}
PURCHASE = {"seconds": 4, "burst": 30, "buyers": 6000, "attempts": 100_000}
"""The default options of the purchase benchmark."""
OWN = {"locks": ("backends", "no_peers"), "purchase": tuple(PURCHASE)}
"""Options of one subject alone."""
PARTS = {"locks": "lab_bench", "purchase": "lab_bench_purchase"}
"""The markers in docs/ between which the tables are written."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the subject, its size, and the output."""
    parser.add_argument(
        "subject",
        nargs="?",
        choices=SUBJECTS,
        default="locks",
        help="the locks (default), a purchase over HTTP beside the reference implementation, the "
        "rebuild of a cached value that 200 readers want, or the cost of idempotency keys",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds per median (default: 3 of locks, else 5)"
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"also write the table between FILE's markers: {' or '.join(PARTS.values())}",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    of_locks = parser.add_argument_group("locks")
    of_locks.add_argument(
        "--backend",
        action="append",
        dest="backends",
        choices=BENCHED,
        help="measured with its floor and its peers; may be repeated (default: all)",
    )
    of_locks.add_argument("--no-peers", action="store_true", help="skip the other libraries")
    of_purchase = parser.add_argument_group("purchase")
    for name, meaning in (
        ("seconds", "seconds of a round"),
        ("burst", "seconds of a round of a queued sale"),
        ("buyers", "buyers of a round, one purchase each"),
        ("attempts", "attempts per write strategy and queued, for a hundredth as many units"),
    ):
        of_purchase.add_argument(
            f"--{name}",
            type=float if name in ("seconds", "burst") else int,
            help=f"{meaning} (default: {PURCHASE[name]})",
        )


def handle(
    terminal: Terminal, *, subject: str, rounds: int | None, json: bool, **options: Any
) -> int:
    """Measure the subject; return 1 if the report is not sound."""
    for other, names in OWN.items():
        if subject != other and (wrong := [name for name in names if options[name]]):
            raise PlanError(f"{wrong[0]}: of `lab bench {other}`, not of {subject}")
    if options["write"] and subject not in PARTS:
        raise PlanError(f"write: of {' and '.join(PARTS)}, not of {subject}")
    asked: dict[str, Any] = {"rounds": rounds}
    if rounds is None:
        asked["rounds"] = 3 if subject == "locks" else 5
    if subject == "locks":
        backends = list(dict.fromkeys(options["backends"] or BENCHED))
        asked |= {"backends": backends, "peers": not options["no_peers"]}
    elif subject == "purchase":
        asked |= {**PURCHASE, **{n: options[n] for n in PURCHASE if options[n] is not None}}
    keep_within(LIMITS, asked)
    check_file("write", options["write"], PARTS.get(subject, ""))
    measured = SUBJECTS[subject]
    with Bar(disable=json) as bar:
        result = measured.bench(asked, bar.show_step)
    is_sound: bool = measured.is_sound(result)
    if options["write"] and is_sound:
        marked.write(options["write"], PARTS[subject], measured.markdown(result))
    terminal.print_report(result, measured, as_json=json, width=PAGE_WIDTH)
    return 0 if is_sound else 1
