"""Send purchases over HTTP to a running shop; exit 1 unless every unit is sold exactly once.

Example: manage.py lab http --attempts 10000 --stock 1000
"""

from argparse import ArgumentParser
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

from django.conf import settings

from loadtest.kernel.params import PlanError
from loadtest.kernel.session import Command
from loadtest.kernel.terminal import Bar, Terminal
from loadtest.load.http.load import LOCAL, HttpLoad, Report, run_http_load

DEFAULT_URL = "http://127.0.0.1:8000/"


class HttpCommand(Command):
    """`lab http`."""

    params = HttpLoad

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the address, the size of the load and the thresholds."""
        parser.add_argument(
            "--url", help=f"address of the shop (default: the running demo, or {DEFAULT_URL})"
        )
        parser.add_argument(
            "--really", metavar="HOST", help="confirm a remote host by repeating its name"
        )
        super().add_arguments(parser)

    def handle(self, terminal: Terminal, **options: Any) -> int:
        """Send the load to the address of the options."""
        host, port = _address(options["url"] or demo_url() or DEFAULT_URL, options["really"])
        return self.conduct(terminal, HttpLoad.of(options, host=host, port=port))

    def run(self, asked: HttpLoad, bar: Bar) -> Report:
        """Send the load and audit the sale."""
        return run_http_load(asked, bar.draw)

    def describe(self, terminal: Terminal, report: Report) -> None:
        """Print the rate, the responses and the verdict."""
        terminal.print(
            f"{report['attempts']} attempts in {report['seconds']} s "
            f"({report['attempts_per_second']:.0f}/s), {report['orders']} orders"
        )
        terminal.print()
        rows = [
            # A form that is sent again while the first is in flight gets the same response.
            [
                f"won, by {report['winners']} buyers" if kind == "won" else kind,
                *(f"{number:g}" for number in numbers.values()),
            ]
            for kind, numbers in report["answers"].items()
        ]
        terminal.table(("response", "count", "p50 ms", "p95 ms", "p99 ms"), rows)
        processes, peak = report["driver"].values()
        terminal.print(f"Sent by {processes} processes with up to {peak} MB.")
        is_ok = report["verdict"] == "ok"
        terminal.print(terminal.verdict(f"{report['verdict']}: {report['why']}", is_expected=is_ok))


COMMAND = HttpCommand()


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
