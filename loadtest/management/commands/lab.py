"""`manage.py lab run`: sell out a sale under one guard after another, and count what was sold."""

import json
import signal
import sys
from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from loadtest import report
from loadtest.bench import report as bench
from loadtest.picture import draw
from loadtest.plan import BACKENDS, STORES, Plan, PlanError
from loadtest.purchase import report as purchase
from loadtest.run import run
from loadtest.stores import BrokeOff
from locking.models import Discipline

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PAGE_WIDTH = 100
BENCH_WIDTH = 160
BENCHED = [alias for alias in BACKENDS if alias not in ("none", "process")]
MOST_ROUNDS = 50
MOST_OF_A_ROUND = {"seconds": 25, "buyers": 50_000}


class Command(BaseCommand):
    """The lab: everything it starts is private, and gone when it ends."""

    help = "Load tests on private stores; the shop's own are never touched."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One subcommand an experiment."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        self._run_arguments(actions.add_parser("run", help="sell out a sale; exit 1 on a surprise"))
        self._bench_arguments(actions.add_parser("bench", help="measure the locks and their peers"))

    def _bench_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "subject",
            nargs="?",
            choices=["locks", "purchase"],
            default="locks",
            help="the locks (default), or a purchase over HTTP beside a tutorial's shop",
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
        parser.add_argument("--rounds", type=int, help="medians of these (default: 3; purchase: 5)")
        parser.add_argument(
            "--seconds", type=float, default=4, help="of a purchase's round (default: 4)"
        )
        parser.add_argument(
            "--buyers", type=int, default=6000, help="who buy once a round (default: 6000)"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")

    def _run_arguments(self, parser: ArgumentParser) -> None:
        known = {field.name: field.default for field in fields(Plan)}
        parser.add_argument(
            "--backend",
            action="append",
            dest="backends",
            metavar="NAME",
            help=f"may be repeated; one of {', '.join(BACKENDS)} (default: none and redis)",
        )
        parser.add_argument(
            "--discipline",
            action="append",
            dest="disciplines",
            metavar="NAME",
            help=f"may be repeated; one of {', '.join(Discipline.values)} (default: naive)",
        )
        for name, kind, meaning in (
            ("buyers", int, "people who want one piece each"),
            ("stock", int, "pieces there are"),
            ("processes", int, "worker processes"),
            ("threads", int, "threads of each process"),
            ("think-ms", float, "payment check between look and write"),
            ("seed", int, "orders the buyers and their pauses"),
            ("repeats", int, "runs of every backend"),
            ("patience", float, "seconds for which a buyer told 'busy' tries again"),
        ):
            default = known[name.replace("-", "_")]
            parser.add_argument(
                f"--{name}", type=kind, default=default, help=f"{meaning} (default: {default})"
            )
        parser.add_argument(
            "--store", choices=STORES, default=known["store"], help="the private database"
        )
        parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the picture as well")
        parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")

    def handle(self, *, action: str, **options: Any) -> None:
        """Do it; no process, port or folder is left, however it ends."""
        before = {signum: signal.signal(signum, _interrupt) for signum in SIGNALS}
        try:
            getattr(self, f"_{action}")(**options)
        except PlanError as error:
            raise CommandError(str(error), returncode=2) from error
        except BrokeOff as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stderr.write("interrupted")
            sys.exit(INTERRUPTED)
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _run(self, **options: Any) -> None:
        plan = Plan(
            backends=tuple(options["backends"] or ("none", "redis")),
            disciplines=tuple(options["disciplines"] or ("naive",)),
            **{
                field.name: options[field.name]
                for field in fields(Plan)
                if field.name not in ("backends", "disciplines")
            },
        )
        with _Bar(disable=options["json"]) as bar:
            result = run(plan, bar.show)
        if options["json"]:
            self.stdout.write(json.dumps(result))
        else:
            console = self._console(PAGE_WIDTH)
            console.print(report.table(result["runs"]))
            for line in report.surprises(result["runs"]):
                console.print(line, style="bold red", soft_wrap=True)
        if options["svg"]:
            options["svg"].write_text(draw(result["runs"], alone=True))
        if not all(map(report.met, result["runs"])):
            sys.exit(1)

    def _bench(self, **options: Any) -> None:
        is_purchase = options["subject"] == "purchase"
        if options["rounds"] is None:
            options["rounds"] = 5 if is_purchase else 3
        if not 1 <= options["rounds"] <= MOST_ROUNDS:
            raise PlanError(f"rounds: {options['rounds']} is not within 1 to {MOST_ROUNDS}")
        if is_purchase:
            return self._bench_purchase(**options)
        backends = list(dict.fromkeys(options["backends"] or BENCHED))
        with _Bar(disable=options["json"]) as bar:
            result = bench.bench(
                backends, options["rounds"], peers=options["peers"], progress=bar.show_step
            )
        if options["write"] and not result["missing"]:
            bench.write(result, options["write"])
        self._tell(result, bench, as_json=options["json"])
        if result["missing"]:
            sys.exit(1)

    def _bench_purchase(self, **options: Any) -> None:
        for name, most in MOST_OF_A_ROUND.items():
            if not 0 < options[name] <= most:
                raise PlanError(f"{name}: {options[name]} is not above 0 and at most {most}")
        with _Bar(disable=options["json"]) as bar:
            result = purchase.bench(
                options["rounds"], options["seconds"], options["buyers"], bar.show_step
            )
        self._tell(result, purchase, as_json=options["json"])
        if not purchase.is_sound(result):
            sys.exit(1)

    def _tell(self, result: dict[str, Any], drawn_by: ModuleType, *, as_json: bool) -> None:
        """One JSON object, or the report's tables and remarks."""
        if as_json:
            self.stdout.write(json.dumps(result))
            return
        console = self._console(BENCH_WIDTH)
        for drawn in drawn_by.tables(result):
            console.print(drawn)
        for line in drawn_by.remarks(result):
            console.print(line, soft_wrap=True)

    def _console(self, width: int) -> Console:
        """A terminal tells its width; a file gets a wide page."""
        given = None if self.stdout.isatty() else width
        return Console(file=self.stdout, width=given)  # type: ignore[arg-type]


def _interrupt(*_: object) -> NoReturn:
    for signum in SIGNALS:  # once is enough: a second one would break off the tidying up
        signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


class _Bar(Progress):
    """A bar for each run, on stderr."""

    def __init__(self, *, disable: bool) -> None:
        columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        super().__init__(*columns, console=console, transient=True, disable=disable)
        self._runs: dict[object, TaskID] = {}

    def show(self, event: dict[str, Any]) -> None:
        """Draw an event of `loadtest.run`."""
        if event["event"] != "progress":
            return
        names = (event["backend"], event["discipline"], event["repeat"])
        if names not in self._runs:
            self._runs[names] = self.add_task("{} + {} #{}".format(*names), total=event["of"])
        self.update(self._runs[names], completed=event["served"])

    def show_step(self, event: dict[str, Any]) -> None:
        """Draw an event of `lab bench`."""
        if event["event"] == "progress":
            if "bench" not in self._runs:
                self._runs["bench"] = self.add_task("", total=event["of"])
            name = self._runs["bench"]
            self.update(name, description=event["system"], completed=event["step"] - 1)
