"""What crowds cost behind nginx: readers of home, open tabs of a sale, sign-ins at once."""

import math
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, repeat
from typing import Any

from devservers import HOST, Nginx
from devservers.programs import ServerMissing, required
from loadtest.bench.journey.pages import World, fetch, get, interval, poll_of, sign_in_form
from loadtest.bench.purchase.measure import percentiles, run_load
from loadtest.bench.purchase.web import THREADS, WebServer
from loadtest.load.http.buyers import Buyer, requests
from loadtest.load.http.client import RESPONSE_TIMEOUT, Replies, paced, send_requests
from loadtest.load.sale import open_sale, remove_sale

OPEN_TABS, CUSTOMERS = 10_000, 50
READERS, ZIPPED = "anonymous home", "anonymous home, compressed"
TABS, SIGN_INS = f"{OPEN_TABS:,} open tabs", f"{CUSTOMERS} sign-ins at once"
PROCESSES = 2
CONNECTIONS = 50
VIEWERS = 50
"""Signed-in buyers whose tabs these are; each polls the address that its own page names."""
Figures = dict[str, Any]


def readers(web: WebServer, nginx: Nginx, seconds: float, *, encoding: str) -> Figures:
    """Request the home page without a session as fast as possible, with wrk if it is installed."""
    cpu, began = web.cpu(), time.monotonic()
    try:
        wrk = [required("wrk"), "-t1", f"-c{CONNECTIONS}", f"-d{math.ceil(seconds)}s"]
        wrk += ["--timeout", f"{RESPONSE_TIMEOUT:g}s"]
        command = [*wrk, "-H", f"Accept-Encoding: {encoding}", nginx.url]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rate = float(re.findall(r"Requests/sec: +([\d.]+)", told)[0])
        wrong = re.findall(r"Non-2xx.*|Socket errors.*", told)
    except ServerMissing:
        rate, wrong = _rate(nginx, repeat(get("/", encoding=encoding)), seconds)
    cores = (web.cpu() - cpu) / (time.monotonic() - began)
    return {"per_second": rate, "cores": cores, "wrong": wrong}


def _rate(nginx: Nginx, messages: Iterator[bytes], seconds: float) -> tuple[float, list[str]]:
    """Send messages on all connections; return the replies a second, and the kinds of refusals."""
    heard = send_requests(nginx.port, messages, connections=CONNECTIONS, seconds=seconds)
    kinds = {reply.kind for reply in heard.replies}
    return len(heard.replies) / (heard.ended - heard.began), sorted(kinds - {"ok"})


def tabs(web: WebServer, nginx: Nginx, world: World, seconds: float) -> Figures:
    """Poll as OPEN_TABS tabs of a sale do; return the cores that these polls need."""
    page = world.sale.get_absolute_url()
    offered = OPEN_TABS / interval(nginx.port, page)
    viewers = world.take(VIEWERS)
    polls = [get(poll_of(fetch(nginx.port, page, one))[0], one) for one in viewers]
    cpu, began = web.cpu(), time.monotonic()
    served, wrong = _rate(nginx, paced(cycle(polls), offered), seconds)
    cores = (web.cpu() - cpu) / (time.monotonic() - began) * offered / served
    return {"offered": offered, "per_second": served, "cores": cores, "wrong": wrong}


def sign_ins(
    web: WebServer, nginx: Nginx, world: World, buyers: Sequence[Buyer], seconds: float
) -> Figures:
    """Let CUSTOMERS sign in at once while others buy; compare with purchases alone.

    Each customer has an address of its own. Only the purchases under way meanwhile count.
    """
    alone = _rush(web, buyers, seconds)
    forms = [sign_in_form(one) for one in world.take(CUSTOMERS)]
    window, statuses = list[float](), list[bytes]()

    def sign_in(number: int) -> bytes:
        where, address = (HOST, nginx.port), (f"127.0.1.{number + 1}", 0)
        with socket.create_connection(where, RESPONSE_TIMEOUT, address) as connection:
            connection.sendall(forms[number])
            return connection.makefile("rb").readline()[9:12]

    def crowd() -> None:
        time.sleep(seconds / 10)  # until the purchases are under way
        window.append(time.monotonic())
        with ThreadPoolExecutor(CUSTOMERS) as pool:
            statuses.extend(pool.map(sign_in, range(CUSTOMERS)))
        window.append(time.monotonic())

    rush = _rush(web, buyers, seconds, during=crowd)
    usual = purchases(alone, alone.began, alone.ended)
    meanwhile = purchases(rush, window[0], min(window[1], rush.ended))
    return {
        "refused": sum(status != b"302" for status in statuses),
        "seconds": window[1] - window[0],
        **{f"alone_{name}": figure for name, figure in usual.items()},
        **meanwhile,
        **compared(meanwhile["p99_ms"], usual["p99_ms"]),
    }


def _rush(
    web: WebServer, buyers: Sequence[Buyer], seconds: float, during: Callable[[], object] = dict
) -> Replies:
    """Sell a unit to each buyer in a sale of its own; each connection has a thread for itself."""
    sale = open_sale("rush", len(buyers))
    forms = requests(buyers, f"{sale.get_absolute_url()}buy/", sale)
    heard, _cpu = run_load(
        web, forms, connections_open=PROCESSES * THREADS, seconds=seconds, during=during
    )
    remove_sale(sale)
    return heard


def compared(meanwhile: float, usual: float) -> Figures:
    """Return the ratio of two waits, which are 0 if no purchase succeeded."""
    if meanwhile and usual:
        return {"p99_ratio": meanwhile / usual, "wrong": []}
    return {"p99_ratio": 0.0, "wrong": ["no purchase succeeded"]}


def purchases(heard: Replies, began: float, ended: float) -> dict[str, float]:
    """Return the rate of purchases between two times, and the waits of those under way then."""
    bought = [one for one in heard.replies if one.kind == "ok"]
    ends = sum(began <= one.received <= ended for one in bought)
    under_way = [one for one in bought if began <= one.received and one.sent <= ended]
    waits = percentiles([one.received - one.sent for one in under_way])
    return {"per_second": ends / (ended - began), **waits}
