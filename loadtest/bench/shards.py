"""`manage.py lab bench shards`: what a reservation costs each Redis server of a queued sale.

The same reservations on one, two and four servers in turn, as at full load: whenever a server
reads, 50 clients have sent theirs. The figure is the CPU time of the busiest server, by INFO,
divided by all reservations of the sale.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from django.core.management import call_command
from django.test.utils import override_settings
from redis import Redis as Client

from devservers import Redis
from devservers.faults.worker import emit
from loadtest.bench.results import Progress, Row, compare, measure, remarks
from loadtest.load.runner import versions
from loadtest.load.sale import open_sale
from locking.backends.redis.connection import Connection, Script
from locking.management.console import Rows
from shop.models import Sale
from shop.reservations import reconciliation, store
from shop.reservations.shards import Shard, home_of
from shop.reservations.store import Entry

__all__ = ["bench", "is_sound", "main", "remarks", "table"]

SERVERS = (1, 2, 4)
CLIENTS = 50
RESERVATIONS = 8000
LIMITS = {2: 0.55, 4: 0.3}
"""The most that a reservation may cost each server, as a part of one server's cost."""
RESERVE = Script(str(Path(store.__file__).parent / "lua" / "reserve.lua"))


def _cpu_us(server: Redis) -> float:
    with Client.from_url(server.url) as client:
        used: dict[str, Any] = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def _reserve(server: Redis, shard: Shard, customers: Sequence[int]) -> float:
    """Reserve a unit for each customer; return the server's CPU time in microseconds."""
    clients = [Connection(server.url) for _ in range(CLIENTS)]
    clients[0].command("SCRIPT", "LOAD", RESERVE.source)
    before = _cpu_us(server)
    for part in (customers[at : at + CLIENTS] for at in range(0, len(customers), CLIENTS)):
        server.pause()
        for client, customer in zip(clients, part, strict=False):
            entry = Entry("", f"{customer:016X}", customer, 1, "key")
            client.send(RESERVE.pack(store.keys_of(shard), [*map(str, entry[1:]), "1"]))
        server.resume()
        for client in clients[: len(part)]:
            client.receive()
            if (reply := client.next_reply()) != "queued":
                raise RuntimeError(f"The reservation was refused: {reply}")
    used = _cpu_us(server) - before
    for client in clients:
        client.close()
    return used


def _measure(servers: Sequence[Redis], reservations: int) -> Row:
    slug = f"shards-{Sale.objects.count()}"
    sale = open_sale(slug, 2 * reservations, fulfilment=Sale.Fulfilment.QUEUED)
    with override_settings(QUEUE_URLS=[server.url for server in servers]):
        reconciliation.load(sale=sale)
        homes: dict[Shard, list[int]] = {}
        for customer in range(1, reservations + 1):
            homes.setdefault(home_of(sale, customer), []).append(customer)
        used = [_reserve(servers[shard.number], shard, ids) for shard, ids in homes.items()]
        left = store.left(sale=sale)
    breaches = [] if left == reservations else [f"{left} of {reservations} units left"]
    return {"cpu_us": max(used) / reservations, "breaches": breaches}


def main(asked: Row) -> None:
    """Measure `asked["rounds"]` rounds of `asked["reservations"]` on private servers."""
    call_command("migrate", verbosity=0, interactive=False)
    emit("versions", versions=versions())
    with ExitStack() as stack:
        servers = [stack.enter_context(Redis()) for _ in range(max(SERVERS))]
        for number in range(asked["rounds"] + 1):
            emit("progress", system="shards", step=number + 1, of=asked["rounds"] + 1)
            for count in SERVERS:
                row = _measure(servers[:count], asked["reservations"])
                if number:  # the first round is the warm-up
                    emit("round", line=str(count), round=row)


def bench(asked: Row, progress: Progress) -> Row:
    """Return the report of {"rounds"} and optionally {"reservations"}."""
    report, measured = measure(
        "shards", "sqlite", {"reservations": RESERVATIONS, **asked}, progress
    )
    report["lines"] = [
        {
            "servers": servers,
            "ratio": median(
                one["cpu_us"] / first["cpu_us"]
                for one, first in zip(rounds, measured["1"], strict=True)
            ),
            "cpu_us": median(one["cpu_us"] for one in rounds),
            "rounds": rounds,
        }
        for servers, rounds in measured.items()
    ]
    ratios = {row["servers"]: row["ratio"] for row in report["lines"]}
    report["targets"] = compare(
        (f"{count} servers: CPU of each, x one server's", ratios.get(str(count)), "<=", limit)
        for count, limit in LIMITS.items()
    )
    return report


def is_sound(report: Row) -> bool:
    """Return True if everything was measured and every reservation took one unit."""
    rounds = [one for row in report["lines"] for one in row["rounds"]]
    return not report["missing"] and not any(one["breaches"] for one in rounds)


def table(report: Row) -> tuple[Sequence[str], Rows]:
    """Return the measurements."""
    rows = [
        [row["servers"], f"{row['cpu_us']:.1f}", f"{row['ratio']:.3f}"] for row in report["lines"]
    ]
    return ("servers", "CPU us of\nthe busiest", "x one server"), rows
