"""What crowds cost behind nginx: readers of home, open tabs of a sale, sign-ins at once."""

import math
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice, repeat
from typing import Any

from devservers import HOST, Nginx
from devservers.programs import ServerMissing, required
from loadtest.bench.journey.pages import World, fetch, get, interval, poll_of, sign_in_form
from loadtest.bench.purchase.measure import percentiles, run_load
from loadtest.bench.purchase.web import THREADS, WebServer
from loadtest.load.http.buyers import Buyer, requests
from loadtest.load.http.client import RESPONSE_TIMEOUT, Replies, send_requests
from loadtest.load.sale import open_sale, remove_sale

PROCESSES = 2
CONNECTIONS = 50
BUYERS = PROCESSES * THREADS
"""Connections that buy: one for each thread, so that no purchase waits for another's thread."""
TABS, SIGN_INS = 10_000, 50
VIEWERS = 50
"""Signed-in buyers whose tabs these are; each polls the address that its own page names."""
Figures = dict[str, Any]


def readers(web: WebServer, nginx: Nginx, seconds: float, *, encoding: str = "identity") -> Figures:
    """Request the home page without a session as fast as possible, with wrk if it is installed."""
    cpu, began = web.cpu(), time.monotonic()
    try:
        wrk = [required("wrk"), "-t1", f"-c{CONNECTIONS}", f"-d{math.ceil(seconds)}s"]
        command = [*wrk, "-H", f"Accept-Encoding: {encoding}", nginx.url]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (rate,) = re.findall(r"Requests/sec: +([\d.]+)", told)
        answers = re.findall(r"Non-2xx.*|Socket errors.*", told)
    except ServerMissing:
        page = repeat(get("/", encoding=encoding))
        heard = send_requests(nginx.port, page, connections=CONNECTIONS, seconds=seconds)
        rate = len(heard.replies) / (heard.ended - heard.began)
        answers = _wrong(heard)
    cores = (web.cpu() - cpu) / (time.monotonic() - began)
    return {"per_second": float(rate), "cores": cores, "wrong": answers}


def tabs(web: WebServer, nginx: Nginx, world: World, seconds: float) -> Figures:
    """Poll as TABS open tabs of a sale do; return the cores that these polls need."""
    page = world.sale.get_absolute_url()
    offered = TABS / interval(nginx.port, page)
    viewers = list(islice(world.buyers, VIEWERS))
    polls = [get(poll_of(fetch(nginx.port, page, one))[0], one) for one in viewers]
    cpu = web.cpu()
    heard = send_requests(
        nginx.port, _paced(polls, offered), connections=CONNECTIONS, seconds=seconds
    )
    served = len(heard.replies)
    cores = (web.cpu() - cpu) / served * offered
    per_second = served / (heard.ended - heard.began)
    return {"offered": offered, "per_second": per_second, "cores": cores, "wrong": _wrong(heard)}


def _paced(messages: Sequence[bytes], per_second: float) -> Iterator[bytes]:
    """Yield the messages again and again, at most at this rate."""
    due = time.monotonic()
    for message in cycle(messages):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / per_second
        yield message


def sign_ins(
    web: WebServer, nginx: Nginx, world: World, buyers: Sequence[Buyer], seconds: float
) -> Figures:
    """Let SIGN_INS customers sign in at once while others buy; compare with purchases alone.

    Each customer has an address of its own. Only the purchases under way meanwhile count.
    """
    alone = _rush(web, buyers, seconds)
    window: list[float] = []
    statuses: list[bytes] = []
    forms = [sign_in_form(one) for one in islice(world.buyers, SIGN_INS)]

    def sign_in(number: int) -> bytes:
        where, address = (HOST, nginx.port), (f"127.0.1.{number + 1}", 0)
        with socket.create_connection(where, RESPONSE_TIMEOUT, address) as connection:
            connection.sendall(forms[number])
            return connection.makefile("rb").readline()[9:12]

    def crowd() -> None:
        time.sleep(seconds / 10)  # until the purchases are under way
        window.append(time.monotonic())
        with ThreadPoolExecutor(SIGN_INS) as pool:
            statuses.extend(pool.map(sign_in, range(SIGN_INS)))
        window.append(time.monotonic())

    rush = _rush(web, buyers, seconds, during=crowd)
    began, ended = window[0], min(window[1], rush.ended)
    meanwhile = [one for one in rush.replies if began <= one.received and one.sent <= ended]
    p99 = [
        percentiles([one.received - one.sent for one in part if one.kind == "ok"])["p99_ms"]
        for part in (alone.replies, meanwhile)
    ]
    return {
        "refused": sum(status != b"302" for status in statuses),
        "seconds": window[1] - window[0],
        "alone_per_second": len(alone.replies) / (alone.ended - alone.began),
        "per_second": len(meanwhile) / (ended - began),
        "alone_p99_ms": p99[0],
        "p99_ms": p99[1],
        "p99_ratio": p99[1] / p99[0],
        "wrong": [],
    }


def _rush(
    web: WebServer,
    buyers: Sequence[Buyer],
    seconds: float,
    during: Callable[[], object] = lambda: None,
) -> Replies:
    """Sell to the buyers through Python for `seconds`, one unit each, in a sale of its own."""
    sale = open_sale("rush", len(buyers))
    forms = requests(buyers, f"{sale.get_absolute_url()}buy/", sale)
    heard, _cpu = run_load(web, forms, connections_open=BUYERS, seconds=seconds, during=during)
    remove_sale(sale)
    return heard


def _wrong(heard: Replies) -> list[str]:
    return sorted({reply.kind for reply in heard.replies} - {"ok"})
