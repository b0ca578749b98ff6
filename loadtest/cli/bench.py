"""Benchmark locks against other libraries, purchases, cache rebuilds or idempotency keys.

Example: manage.py lab bench locks --backend redis --rounds 3
"""

from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.bench import caches, keys
from loadtest.bench.locks import report as locks
from loadtest.bench.purchase import report as purchase
from loadtest.charts import marked
from loadtest.charts.terminal import Terminal, check_file
from loadtest.load.plan import BACKENDS, PlanError, keep_within

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
        help="locks (default), purchase: over HTTP, compared with the reference implementation, "
        "cache: 200 readers of an expired value, keys: the cost of idempotency keys",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="rounds; the median is reported (default: 3 for locks, else 5)",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"also write the table to FILE, between the markers {' or '.join(PARTS.values())}",
    )
    of_locks = parser.add_argument_group("locks")
    of_locks.add_argument(
        "--backend",
        action="append",
        dest="backends",
        choices=BENCHED,
        help="lock backend, may be repeated (default: all)",
    )
    of_locks.add_argument(
        "--no-peers", action="store_true", help="skip the comparison with other libraries"
    )
    of_purchase = parser.add_argument_group("purchase")
    for name, meaning in (
        ("seconds", "duration of a round, in seconds"),
        ("burst", "duration of a round of a queued sale, in seconds"),
        ("buyers", "number of buyers per round, one purchase each"),
        ("attempts", "attempts per write strategy, for 1 %% as many units"),
    ):
        of_purchase.add_argument(
            f"--{name}",
            type=float if name in ("seconds", "burst") else int,
            help=f"{meaning} (default: {PURCHASE[name]})",
        )


def handle(terminal: Terminal, *, subject: str, rounds: int | None, **options: Any) -> int:
    """Measure the subject; return 1 if the report is not sound."""
    for other, names in OWN.items():
        if subject != other and (wrong := [name for name in names if options[name]]):
            option = {"backends": "--backend", "no_peers": "--no-peers"}.get(wrong[0])
            raise PlanError(
                f"{option or f'--{wrong[0]}'} belongs to `lab bench {other}`, not {subject}."
            )
    if options["write"] and subject not in PARTS:
        raise PlanError(f"--write belongs to {' and '.join(PARTS)}, not {subject}.")
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
