"""HttpLoad a running shop over HTTP, from several processes; exit code by the audit's verdict."""

from argparse import ArgumentParser
from typing import Any
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.charts.terminal import Bar, Terminal
from loadtest.load.http.load import LOCAL, HttpLoad, Report, run_http_load
from loadtest.load.plan import PlanError
from shop.models import Sale

PAGE_WIDTH = 100


def add_arguments(parser: ArgumentParser) -> None:
    """Where, how many, and what is good enough."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000/", help="the shop (default: %(default)s)"
    )
    parser.add_argument(
        "--really", metavar="HOST", help="name a host that is not this machine once more"
    )
    for name, default, meaning in (
        ("attempts", 10_000, "purchases sent"),
        ("stock", 1000, "pieces there are"),
        ("buyers", None, "customers (default: twice the stock, or one an attempt)"),
        ("processes", 2, "that drive"),
        ("connections", 50, "of each process"),
    ):
        said = meaning if default is None else f"{meaning} (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=said)
    parser.add_argument("--queued", action="store_true", help="a queued sale rather than a direct")
    parser.add_argument(
        "--max-p99-ms", type=float, help="milliseconds; exit 1 when the winners' p99 is longer"
    )
    parser.add_argument(
        "--min-per-second", type=float, help="attempts a second; exit 1 when there are fewer"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")


def handle(terminal: Terminal, **options: Any) -> int:
    """HttpLoad, tell, and judge."""
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
        _tell(terminal, report)
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
        raise PlanError(f"url: {host} is another machine; say --really {host} if it is yours")
    return host, port


def _tell(terminal: Terminal, report: Report) -> None:
    title = (
        f"{report['attempts']} attempts in {report['seconds']} s "
        f"({report['attempts_per_second']:.0f}/s), {report['orders']} orders"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("answer")
    for column in ("count", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for kind, numbers in report["answers"].items():
        # A form that is sent again while the first is at work hears the same answer.
        name = f"won, by {report['winners']} buyers" if kind == "won" else kind
        table.add_row(name, *(f"{number:g}" for number in numbers.values()))
    console = terminal.console(PAGE_WIDTH)
    console.print(table)
    driver = report["driver"]
    console.print(f"driver: {driver['processes']} processes, peak {driver['peak_mb']} MB")
    style = "bold" if report["verdict"] == "ok" else "bold red"
    console.print(f"{report['verdict']}: {report['why']}", style=style, soft_wrap=True)
