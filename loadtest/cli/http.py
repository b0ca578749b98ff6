"""Send HTTP load to a running shop; exit 1 unless the audit's verdict is ok."""

from argparse import ArgumentParser
from typing import Any
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.charts.terminal import Bar, Terminal
from loadtest.cli import JSON_HELP, add_numbers
from loadtest.load.http.load import LOCAL, HttpLoad, Report, run_http_load
from loadtest.load.plan import PlanError
from shop.models import Sale

PAGE_WIDTH = 100


def add_arguments(parser: ArgumentParser) -> None:
    """Add the address, the size of the load and the thresholds."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000/", help="the shop (default: %(default)s)"
    )
    parser.add_argument(
        "--really", metavar="HOST", help="repeat the name of a host that is not this machine"
    )
    add_numbers(
        parser,
        (
            ("attempts", 10_000, "purchases sent"),
            ("stock", 1000, "units on sale"),
            ("buyers", None, "buyers (default: twice the stock, or one per attempt)"),
            ("processes", 2, "processes that send the load"),
            ("connections", 50, "connections of each process"),
        ),
    )
    parser.add_argument(
        "--queued", action="store_true", help="a queued sale instead of a direct one"
    )
    parser.add_argument(
        "--max-p99-ms", type=float, help="exit 1 if the p99 of successful purchases exceeds it"
    )
    parser.add_argument(
        "--min-per-second", type=float, help="exit 1 if there are fewer attempts per second"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def handle(terminal: Terminal, **options: Any) -> int:
    """Send the load and print the report; return 1 unless its verdict is ok."""
    host, port = _address(options["url"], options["really"])
    buyers = options["buyers"]
    if buyers is None:
        buyers = min(options["attempts"], 2 * options["stock"])
    names = ("attempts", "stock", "processes", "connections", "max_p99_ms", "min_per_second")
    asked = HttpLoad(
        host=host,
        port=port,
        buyers=buyers,
        fulfilment=Sale.Fulfilment.QUEUED if options["queued"] else Sale.Fulfilment.DIRECT,
        **{name: options[name] for name in names},
    )
    with Bar(disable=options["json"]) as bar:
        report = run_http_load(asked, bar.draw)
    if options["json"]:
        terminal.json(report)
    else:
        _print(terminal, report)
    return 0 if report["verdict"] == "ok" else 1


def _address(url: str, really: str | None) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise PlanError(f"url: {url!r}: {error}") from error
    if parts.scheme != "http" or not host:
        raise PlanError(f"url: {url!r} is not http://HOST:PORT/")
    if host not in LOCAL and really != host:
        raise PlanError(f"url: {host} is another machine; add --really {host} if it is yours")
    return host, port


def _print(terminal: Terminal, report: Report) -> None:
    title = (
        f"{report['attempts']} attempts in {report['seconds']} s "
        f"({report['attempts_per_second']:.0f}/s), {report['orders']} orders"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("answer")
    for column in ("count", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for kind, numbers in report["answers"].items():
        # A form that is sent again while the first is in flight gets the same answer.
        name = f"won, by {report['winners']} buyers" if kind == "won" else kind
        table.add_row(name, *(f"{number:g}" for number in numbers.values()))
    console = terminal.console(PAGE_WIDTH)
    console.print(table)
    driver = report["driver"]
    console.print(f"driver: {driver['processes']} processes, peak {driver['peak_mb']} MB")
    style = "bold" if report["verdict"] == "ok" else "bold red"
    console.print(f"{report['verdict']}: {report['why']}", style=style, soft_wrap=True)
