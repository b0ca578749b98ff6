"""Measure what each request costs, in Python and behind nginx, and the sum of a buyer's minutes.

The arguments are {"rounds": N, "part": one of report.PARTS, ...} with report.SIZES; the events are
progress and the rounds of each line.
"""

import time
from contextlib import closing
from typing import Any

from django.core.management import call_command

from devservers import HOST, Nginx
from devservers.faults.worker import emit
from loadtest.bench.journey import crowds, growth
from loadtest.bench.journey.pages import Requests, World, polls_before_opening
from loadtest.bench.purchase.web import WebServer
from loadtest.bench.services import requests_of
from loadtest.kernel.topology import Stores
from loadtest.load.http.client import Connection

Cost = dict[str, Any]
FLOOR = "/livez"
WITH, WITHOUT = "five minutes with sign-in", "five minutes without sign-in"
SIGN_IN = ("sign-in page", "sign-in")
VISIT = (
    "home, signed in",
    "product, signed in",
    "sale before the opening, signed in",
    "purchase",
    "order",
    "start of the payment",
    "payment page",
    "end of the payment",
    "paid order",
)
POLL = "poll of stock before the opening, signed in"
FILE = "static file"
BEHIND = 3
"""How much longer nginx is asked: it may pass one request a second on."""
COUNTED = ("ms", "queries", "redis", "bytes", "nginx_ms")


def main(asked: dict[str, Any], _stores: Stores) -> None:
    """Measure the part that is asked for."""
    call_command("collectstatic", verbosity=0, interactive=False)
    if asked["part"] == "growth":
        emit("round", line="growth", round={"rows": growth.rows(), "expiring": growth.EXPIRING})
    else:
        {"requests": _requests, "crowds": _crowds}[asked["part"]](World(), asked)


def _requests(world: World, asked: dict[str, Any]) -> None:
    # One process: the connections of its threads and its caches are warm after the first round.
    with WebServer(1) as web, Nginx(web=f"{HOST}:{web.port}") as nginx:
        world.find_files(web.port)

        def measured(port: int, seconds: float) -> dict[str, Cost]:
            passed = world.requests(web.port, asked["people"])
            return {name: measure(web, port, messages, seconds) for name, messages in passed}

        for number in range(asked["rounds"] + 1):
            seconds = asked["seconds"] if number else 0.0
            step = {"step": number + 1, "of": asked["rounds"] + 1}
            emit("progress", system="requests to Python", **step)
            costs = measured(web.port, seconds)
            emit("progress", system="requests to nginx", **step)
            for name, behind in measured(nginx.port, BEHIND * seconds).items():
                costs[name]["nginx_ms"] = behind["ms"]
                costs[name]["wrong"] += behind["wrong"]
            if number:
                polls = polls_before_opening(web.port)
                for name, cost in summed(costs, polls=polls, files=len(world.files)).items():
                    emit("round", line=name, round=cost)


def _crowds(world: World, asked: dict[str, Any]) -> None:
    seconds = asked["crowd_seconds"]
    buyers = world.take(asked["buyers"])
    with (
        WebServer(crowds.PROCESSES) as web,
        Nginx(web=f"{HOST}:{web.port}", processes=crowds.PROCESSES) as nginx,
    ):
        for number in range(asked["rounds"]):
            emit("progress", system="crowds", step=number + 1, of=asked["rounds"])
            for name, figures in (
                (crowds.READERS, crowds.readers(web, nginx, seconds, encoding="identity")),
                (crowds.ZIPPED, crowds.readers(web, nginx, seconds, encoding="gzip")),
                (crowds.TABS, crowds.tabs(web, nginx, world, seconds)),
                (crowds.SIGN_INS, crowds.sign_ins(web, nginx, world, buyers, seconds)),
            ):
                emit("round", line=name, round=figures)


def measure(web: WebServer, port: int, messages: Requests, seconds: float) -> Cost:
    """Send messages for `seconds`, one after the other, and return what one of them costs.

    A list of messages is sent to its end.
    """
    stores = {"queries": requests_of("mysql"), "redis": requests_of("redis")}
    before = {name: count() for name, count in stores.items()}
    cpu, until = web.cpu(), time.monotonic() + seconds
    sent, size, wrong = 0, 0, set[str]()
    with closing(Connection((HOST, port), 0.0)) as connection:
        for message in messages:
            kind = connection.exchange(message)
            if kind != "ok" or (message.startswith(b"GET") and connection.status != b"200"):
                wrong.add(f"{kind} ({connection.status.decode()})")
            sent, size = sent + 1, size + len(message) + connection.size
            if time.monotonic() >= until and not isinstance(messages, list):
                break
    cpu = web.cpu() - cpu
    used = {name: count().since(before[name]).reads / sent for name, count in stores.items()}
    return {"ms": 1000 * cpu / sent, **used, "bytes": size / sent, "wrong": sorted(wrong)}


def summed(costs: dict[str, Cost], *, polls: int, files: int) -> dict[str, Cost]:
    """Add the sums of a buyer's five minutes, and multiples of the floor in Python."""
    times = {**dict.fromkeys((*SIGN_IN, *VISIT), 1), POLL: polls, FILE: files}
    for name, count in times.items():
        costs[name]["times"] = count
    for name, left_out in ((WITH, ()), (WITHOUT, SIGN_IN)):
        parts = [(costs[part], count) for part, count in times.items() if part not in left_out]
        total = {one: sum(cost[one] * count for cost, count in parts) for one in COUNTED}
        costs[name] = {**total, "wrong": []}
    floor = costs[FLOOR]["ms"]
    for cost in costs.values():
        cost |= {"x": cost["ms"] / floor, "nginx_x": cost["nginx_ms"] / floor}
    return costs
