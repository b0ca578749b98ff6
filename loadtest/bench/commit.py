"""`manage.py lab bench commit`: purchases a second by the time between reservation and COMMIT.

The designs are one stock row (with group commit, and with a transaction for each purchase), one row
per unit, and a reservation in Redis whose order is written later. All run over HTTP under the same
server. The database pauses each transaction after it has taken its units: a trigger calls SLEEP, so
the programs are the same with and without a pause. `main` measures on private stores, the rest
makes the report.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection

from devservers.faults.worker import emit
from loadtest.bench.purchase import burst, runner
from loadtest.bench.purchase.measure import figures, run_load
from loadtest.bench.purchase.report import ENVIRON
from loadtest.bench.purchase.runner import Line
from loadtest.bench.purchase.web import WebServer
from loadtest.bench.reference import units
from loadtest.bench.results import Progress, Row, measure, remarks
from loadtest.charts.rates import Series, by_category
from loadtest.charts.terminal import page
from loadtest.load.http.buyers import Buyer, requests, sign_in
from loadtest.load.runner import versions
from shop.models import Sale

__all__ = ["bench", "chart", "is_sound", "main", "markdown", "remarks", "table"]

PAUSES_MS = (0, 1, 5, 20, 50)
CONNECTIONS = 50
PROCESSES = 2
BUYERS_PER_SECOND = 2500
UNITS = Line(name="one row per unit, SKIP LOCKED", path=units.PATH, backend="none")
QUEUED = replace(runner.QUEUED, name="Redis, orders written in batches")
# Lines with the same backend are adjacent: workers may use the old one for a second.
LINES = (
    Line(name="one row, group commit"),
    QUEUED,
    Line(name="one row, a transaction each", backend="none"),
    UNITS,
)
ACCEPTED = "Redis, reservations accepted"
FIGURES = ("per_second", "accepted_per_second", "p99_ms")
TRIGGER = """
    CREATE TRIGGER lab_pause AFTER UPDATE ON {} FOR EACH ROW
    IF NEW.{} <=> {:d} THEN DO SLEEP({:f}); END IF
"""


def main(asked: Row) -> None:
    """Measure every line with every pause, `asked["rounds"]` times."""
    call_command("migrate", verbosity=0, interactive=False)
    emit("versions", versions=versions())
    buyers = sign_in(max(100, round(asked["seconds"] * BUYERS_PER_SECOND)), "burst")
    with WebServer(PROCESSES) as web:
        for number in range(asked["rounds"] + 1):
            for pause in asked["pauses"] if number else [0]:  # the first round is the warm-up
                for line in LINES:
                    about = {"step": number + 1, "of": asked["rounds"] + 1}
                    emit("progress", system=f"{line.name}, {pause} ms", **about)
                    runner.activate(line)
                    seconds = asked["seconds"] if number else runner.WARM_UP
                    sold = replace(line, name=f"{line.name} {pause} {number}")
                    found = _measure(web, sold, buyers, pause, seconds)
                    if number:
                        emit("round", line=line.name, round={"pause_ms": pause, **found})


def _measure(
    web: WebServer, line: Line, buyers: Sequence[Buyer], pause: float, seconds: float
) -> Row:
    """Sell to the buyers for `seconds`; the rate counts orders in the database."""
    sale = runner.sale_of(line, 0, buyers)
    forms = requests(buyers, line.path.format(sale.slug), sale)
    has_rows = line.path == units.PATH
    with ExitStack() as stack:
        if has_rows:
            units.create_units(sale=sale, count=len(buyers))
        if sale.is_queued:
            stack.enter_context(burst.consumer(sale))
        # One purchase first, so that the workers know the sale and the consumer has started.
        first, _ = run_load(web, [next(forms)], connections_open=1, seconds=seconds)
        before = sum(one.kind == "ok" for one in first.replies)
        burst.wait_until_written(sale, before)
        with paused(sale, pause, has_rows=has_rows):
            heard, cpu = run_load(web, forms, connections_open=CONNECTIONS, seconds=seconds)
            found = figures(heard, cpu, wanted="ok")
            orders = before + found["answers"].get("ok", 0)
            written = burst.wait_until_written(sale, orders, poll=0.02)
        found["accepted_per_second"] = found["per_second"]
        if sale.is_queued:
            found["per_second"] = round((orders - before) / (written - heard.began), 1)
        if has_rows:
            breaches = units.breaches(sale=sale, initial=len(buyers), acknowledged=orders)
        else:
            breaches = runner.breaches(line, sale, orders)
        return found | {"breaches": list(breaches)}


@contextmanager
def paused(sale: Sale, milliseconds: float, *, has_rows: bool) -> Iterator[None]:
    """Let the database pause each transaction that takes units of the sale, before its COMMIT."""
    rows = (
        ("lab_unit", "sale_id", sale.pk) if has_rows else ("inventory_stock", "id", sale.stock_id)
    )
    with connection.cursor() as cursor:
        cursor.execute(TRIGGER.format(*rows, milliseconds / 1000) if milliseconds else "DO 0")
    try:
        yield
    finally:
        with connection.cursor() as cursor:  # another connection, if the block has closed it
            cursor.execute("DROP TRIGGER IF EXISTS lab_pause")


def bench(asked: Row, progress: Progress) -> Row:
    """Return the report of {"rounds", "seconds"} and optionally {"pauses"}, in milliseconds."""
    environ = {**ENVIRON, "PURCHASES_PER_GRANT": str(settings.PURCHASES_PER_GRANT)}
    asked = {"pauses": PAUSES_MS, **asked}
    report, measured = measure("commit", "mariadb", asked, progress, environ)
    report |= {"lines": [], "targets": []}
    for (line, done), pause in product(measured.items(), asked["pauses"]):
        rounds = [one for one in done if one["pause_ms"] == pause]
        rates = {name: round(median(one[name] for one in rounds), 1) for name in FIGURES}
        report["lines"].append({"line": line, "pause_ms": pause, **rates, "rounds": rounds})
    return report


def is_sound(report: Row) -> bool:
    """Return True if everything was measured and the accounts of every round are exact."""
    rounds = (one for row in report["lines"] for one in row["rounds"])
    return not report["missing"] and not any(one["breaches"] for one in rounds)


def _series(report: Row) -> list[Series]:
    """Return the rates of each design, one for each pause."""
    found: dict[str, list[float]] = {}
    for row in report["lines"]:
        found.setdefault(row["line"], []).append(row["per_second"])
        if row["line"] == QUEUED.name:
            found.setdefault(ACCEPTED, []).append(row["accepted_per_second"])
    return list(found.items())


def table(report: Row) -> tuple[Sequence[str], list[list[str]]]:
    """Return the rates."""
    rows = [[name, *(f"{rate:.0f}" for rate in rates)] for name, rates in _series(report)]
    return ["purchases a second", *_pauses(report)], rows


def _pauses(report: Row) -> list[str]:
    return [f"{pause} ms" for pause in report["settings"]["pauses"]]


def markdown(report: Row) -> str:
    """Return the rates as a Markdown table for the docs."""
    headings, rows = table(report)
    return page(headings, map(list, rows), report["settings"]["rounds"], report["versions"])


def chart(report: Row) -> Any:
    """Return the rates as an SVG file."""
    title = "Purchases a second, by the time between reservation and COMMIT"
    return by_category(title, _pauses(report), _series(report))
