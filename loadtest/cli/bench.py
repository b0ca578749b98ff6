"""Measure the locks and their peers, a purchase, a cached value's rebuild, idempotency keys."""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from loadtest import keys, rebuilds
from loadtest.bench import report as bench
from loadtest.plan import BACKENDS, PlanError
from loadtest.purchase import report as purchase
from loadtest.terminal import Bar, Terminal

PAGE_WIDTH = 160
BENCHED = [alias for alias in BACKENDS if alias not in ("none", "process")]
MOST_ROUNDS = 50
MOST = {"seconds": 25, "burst": 40, "buyers": 50_000, "attempts": 200_000}


def add_arguments(parser: ArgumentParser) -> None:
    """What is measured, for how long, and where the result goes."""
    parser.add_argument(
        "subject",
        nargs="?",
        choices=SUBJECTS,
        default="locks",
        help="the locks (default), a purchase over HTTP beside a tutorial's shop, the rebuild of a "
        "cached value that 200 readers want, or what idempotency keys add to a purchase",
    )
    parser.add_argument(
        "--backend",
        action="append",
        dest="backends",
        choices=BENCHED,
        help="with its floor and its peers; may be repeated (default: all)",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="between FILE's lab_bench markers as well"
    )
    parser.add_argument("--no-peers", action="store_false", dest="peers", help="a short one")
    parser.add_argument("--rounds", type=int, help="medians of these (default: 3; else: 5)")
    parser.add_argument(
        "--seconds", type=float, default=4, help="of a purchase's round (default: 4)"
    )
    parser.add_argument(
        "--burst", type=float, default=30, help="seconds of a round for a queued sale (default: 30)"
    )
    parser.add_argument(
        "--buyers", type=int, default=6000, help="who buy once a round (default: 6000)"
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=100_000,
        help="once a discipline and once queued, for a hundredth of the pieces (default: 100000)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")


def handle(terminal: Terminal, **options: Any) -> int:
    """Measure the subject."""
    subject = options["subject"]
    if options["rounds"] is None:
        options["rounds"] = 3 if subject == "locks" else 5
    if not 1 <= options["rounds"] <= MOST_ROUNDS:
        raise PlanError(f"rounds: {options['rounds']} is not within 1 to {MOST_ROUNDS}")
    return SUBJECTS[subject](terminal, **options)


def _locks(terminal: Terminal, **options: Any) -> int:
    backends = list(dict.fromkeys(options["backends"] or BENCHED))
    with Bar(disable=options["json"]) as bar:
        result = bench.bench(
            backends, options["rounds"], peers=options["peers"], progress=bar.show_step
        )
    if options["write"] and not result["missing"]:
        bench.write(result, options["write"])
    if options["json"]:
        terminal.json(result)
    else:
        terminal.tell(result, bench, width=PAGE_WIDTH)
    return 1 if result["missing"] else 0


def _purchase(terminal: Terminal, **options: Any) -> int:
    for name, most in MOST.items():
        if not 0 < options[name] <= most:
            raise PlanError(f"{name}: {options[name]} is not above 0 and at most {most}")
    with Bar(disable=options["json"]) as bar:
        asked = {name: options[name] for name in ("rounds", *MOST)}
        result = purchase.bench(asked, bar.show_step)
    if options["json"]:
        terminal.json(result)
    else:
        terminal.tell(result, purchase, width=PAGE_WIDTH)
    return 0 if purchase.is_sound(result) else 1


def _of(subject: ModuleType) -> Callable[..., int]:
    """For a subject that is asked for its rounds alone."""

    def measure(terminal: Terminal, **options: Any) -> int:
        with Bar(disable=options["json"]) as bar:
            result = subject.bench(options["rounds"], bar.show_step)
        if options["json"]:
            terminal.json(result)
        else:
            terminal.tell(result, subject, width=PAGE_WIDTH)
        return 0 if subject.is_sound(result) else 1

    return measure


SUBJECTS = {"locks": _locks, "purchase": _purchase, "cache": _of(rebuilds), "keys": _of(keys)}
