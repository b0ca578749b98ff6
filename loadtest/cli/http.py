"""Send purchases over HTTP to a running shop; exit 1 unless every unit is sold exactly once.

Example: manage.py lab http --attempts 10000 --stock 1000
"""

from argparse import ArgumentParser
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

from django.conf import settings

from loadtest.charts.terminal import Terminal
from loadtest.cli import add_numbers
from loadtest.load.http.load import LOCAL, HttpLoad, Report, run_http_load
from loadtest.load.plan import PlanError
from shop.models import Sale

DEFAULT_URL = "http://127.0.0.1:8000/"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the address, the size of the load and the thresholds."""
    parser.add_argument(
        "--url", help=f"address of the shop (default: the running demo, or {DEFAULT_URL})"
    )
    parser.add_argument(
        "--really", metavar="HOST", help="confirm a remote host by repeating its name"
    )
    add_numbers(
        parser,
        (
            ("attempts", 10_000, "number of purchases to send"),
            ("stock", 1000, "units on sale"),
            ("buyers", None, "number of buyers (default: twice the stock, at most --attempts)"),
            ("processes", 2, "processes that send the purchases"),
            ("connections", 50, "connections per process"),
        ),
    )
    parser.add_argument(
        "--queued", action="store_true", help="test a queued sale instead of a direct one"
    )
    parser.add_argument(
        "--max-p99-ms", type=float, help="exit 1 if the p99 of successful purchases is higher"
    )
    parser.add_argument(
        "--min-per-second", type=float, help="exit 1 if there are fewer attempts per second"
    )


def handle(terminal: Terminal, **options: Any) -> int:
    """Send the load and print the report; return 1 unless its verdict is ok."""
    host, port = _address(options["url"] or demo_url() or DEFAULT_URL, options["really"])
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
    with terminal.bar() as bar:
        report = run_http_load(asked, bar.draw)
    terminal.show(report, _describe)
    return 0 if report["verdict"] == "ok" else 1


def demo_url() -> str | None:
    """Return the address of the demo that uses the same data folder, if it responds."""
    with suppress(OSError, ValueError):
        url = (settings.VAR / "demo.url").read_text().strip()
        with urlopen(urljoin(url, "livez"), timeout=2):  # noqa: S310
            return url
    return None


def _address(url: str, really: str | None) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise PlanError(f"--url {url} is not an address: {error}.") from error
    if parts.scheme != "http" or not host or parts.path.strip("/"):
        raise PlanError(f"--url must be http://HOST:PORT/, not {url}")
    if host not in LOCAL and really != host:
        raise PlanError(f"{host} is not this machine; add --really {host} if you own it.")
    return host, port


def _describe(terminal: Terminal, report: Report) -> None:
    terminal.print(
        f"{report['attempts']} attempts in {report['seconds']} s "
        f"({report['attempts_per_second']:.0f}/s), {report['orders']} orders"
    )
    terminal.print()
    rows = [
        # A form that is sent again while the first is in flight gets the same answer.
        [
            f"won, by {report['winners']} buyers" if kind == "won" else kind,
            *(f"{number:g}" for number in numbers.values()),
        ]
        for kind, numbers in report["answers"].items()
    ]
    terminal.table(("answer", "count", "p50 ms", "p95 ms", "p99 ms"), rows)
    driver = report["driver"]
    terminal.print(f"Sent by {driver['processes']} processes with up to {driver['peak_mb']} MB.")
    is_ok = report["verdict"] == "ok"
    terminal.print(terminal.verdict(f"{report['verdict']}: {report['why']}", is_expected=is_ok))
