"""Run the benchmark of a waiting room: a lottery of all people, then two sales with a rush.

The arguments are {"people": N, "waiting": N, "units": N, "seconds": S}. The events are the
versions, progress, "kill", after which Redis has to be killed and restarted, and the figures.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import cycle
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.utils import timezone
from redis import Redis, RedisError

from devservers import HOST, Nginx
from devservers.faults.waiting import until
from devservers.faults.worker import emit
from devservers.process_pool import ProcessPool
from loadtest.bench.purchase.measure import percentiles
from loadtest.bench.purchase.web import WebServer
from loadtest.bench.room.clients import Clients
from loadtest.bench.room.fairness import verify
from loadtest.load.http.buyers import Buyer, requests, sign_in
from loadtest.load.http.client import send_requests
from loadtest.load.runner import versions
from loadtest.load.sale import open_sale
from locking import locks, policy
from shop.models import Order, Sale
from waiting_room import lottery, service, store
from waiting_room.models import Room

PROCESSES = 2
CONNECTIONS = 50
HTTP_SECONDS = 5.0
"""Time for which people join over HTTP; the others join through the service."""
NO_ACCOUNT = 1_000_000_000
"""Ids from here on have no account: only the room sees these customers."""
INLET = 20_000
"""Half of the default: here the clients, nginx and the database share the cores of the shop."""
LATER = timedelta(hours=1)
MAX_SECONDS = 60.0
STEPS = ("HTTP joins", "joins", "Redis killed", "polls", "shuffle", "buyers alone", "rush")
Asked = dict[str, Any]
Measured = tuple[dict[str, float], list[str]]
"""Figures and breaches."""


def main(asked: Asked) -> None:
    """Measure all steps, and verify each room."""
    call_command("migrate", verbosity=0, interactive=False)
    policy.switch(backend="redis", mode="conditional", reason="lab bench room", force=True)
    emit("versions", versions=versions())
    buyers = sign_in(asked["accounts"])
    with WebServer(PROCESSES) as web, Nginx(web=f"{HOST}:{web.port}") as nginx:
        figures, breaches = _lottery(asked, web, nginx, buyers)
        buyers = buyers[: asked["units"]]
        alone, wrong = _rush("buyers alone", asked["units"], nginx, buyers)
        figures["alone_p99_ms"] = alone["p99_ms"]
        rush, also_wrong = _rush("rush", asked["waiting"], nginx, buyers)
    figures |= rush | {"p99_ratio": rush["p99_ms"] / alone["p99_ms"]}
    rounded = {name: round(value, 4) for name, value in figures.items()}
    emit("figures", report={"figures": rounded, "breaches": [*breaches, *wrong, *also_wrong]})


def _lottery(asked: Asked, web: WebServer, nginx: Nginx, buyers: Sequence[Buyer]) -> Measured:
    """Let all people join, kill Redis while they wait, then draw their positions."""
    room = _create(Room.Mode.LOTTERY, asked["people"])
    _step("HTTP joins")
    path = f"{_page(room)}join/"
    forms = [buyer.post(path, f"csrfmiddlewaretoken={buyer.csrf}") for buyer in buyers]
    joined = send_requests(nginx.port, forms, connections=CONNECTIONS, seconds=HTTP_SECONDS)
    _step("joins")
    seen = store.visit(room=room, sale=room.sale)
    assert seen is not None
    others = asked["people"] - seen.joined
    seconds = _join(room, range(NO_ACCOUNT, NO_ACCOUNT + others))
    figures = {
        "http_joins_per_second": len(joined.replies) / (joined.ended - joined.began),
        "joins_per_second": others / seconds,
    }
    _step("Redis killed")
    before = store.arrivals(room=room, until=asked["people"])
    _kill_redis()
    after = store.arrivals(room=room, until=asked["people"])
    figures["places_lost"] = sum(old != new for old, new in zip(before, after, strict=True))
    _step("polls")
    poll, cpu, seconds = cycle([_poll(room)]), web.cpu(), asked["seconds"]
    polls = send_requests(nginx.port, poll, connections=CONNECTIONS, seconds=seconds)
    figures["polls_per_second"] = len(polls.replies) / (polls.ended - polls.began)
    figures["python_cores"] = (web.cpu() - cpu) / seconds
    _step("shuffle")
    _open(room)
    seen = store.visit(room=room, sale=room.sale)
    assert seen is not None
    began = time.monotonic()
    lottery.draw(room=room, cutoff=seen.cutoff or 0)
    figures["shuffle_s"] = time.monotonic() - began
    redis = Redis.from_url(settings.REDIS_URL)
    sizes = [redis.memory_usage(key, samples=0) or 0 for key in store.keys_of(room)]
    figures["bytes_per_person"] = sum(sizes) / asked["people"]
    room.refresh_from_db(fields=["root"])
    fair = verify(room)
    figures["correlation"] = abs(fair["correlation"])
    kinds = {reply.kind for reply in (*joined.replies, *polls.replies)} - {"ok"}
    return figures, [*fair["differences"], *(f"an answer was {kind}" for kind in kinds)]


def _rush(name: str, waiting: int, nginx: Nginx, buyers: Sequence[Buyer]) -> Measured:
    """Let all wait and poll; the first buy at their turn, the others learn of "sold out"."""
    _step(name)
    room = _create(Room.Mode.ARRIVAL, len(buyers))
    for buyer in buyers:
        service.join(sale=room.sale, customer_id=buyer.user.pk)
    _join(room, range(NO_ACCOUNT, NO_ACCOUNT + waiting - len(buyers)))
    interval = service.status_of(sale=room.sale).poll_seconds
    forms = list(requests(buyers, f"{room.sale.get_absolute_url()}buy/", room.sale))
    clients = Clients(nginx.port, _poll(room), forms, size=waiting)
    _open(room)
    seen = clients.wait(interval=interval, seconds=MAX_SECONDS)
    sold_out = max(seen.bought.values(), default=seen.began)
    waits = [bought - seen.sent[client] for client, bought in seen.bought.items()]
    figures = {
        "p99_ms": percentiles(waits)["p99_ms"],
        "refusals": seen.refusals.total(),
        "waiting_polls_per_second": seen.states.total() / (seen.informed - seen.began),
        "sold_out_s": seen.informed - sold_out,
    }
    breaches = list(verify(room)["differences"])
    if (orders := Order.objects.filter(sale=room.sale_id).count()) != len(buyers):
        breaches.append(f"{name}: {orders} orders for {len(buyers)} units")
    if refused := seen.refusals["not_admitted"]:
        breaches.append(f"{name}: {refused} forms were refused at their turn")
    if seen.waiting:
        breaches.append(f"{name}: {len(seen.waiting)} clients waited for more than {MAX_SECONDS} s")
    return figures, breaches


def _step(name: str) -> None:
    emit("progress", system=name, step=STEPS.index(name) + 1, of=len(STEPS))


def _create(mode: str, units: int) -> Room:
    """Create a sale that opens in an hour, with a room."""
    sale = open_sale(f"room-{Sale.objects.count()}", units)
    Sale.objects.filter(pk=sale.pk).update(opens_at=timezone.now() + LATER)
    sale = Sale.objects.select_related("product", "stock").get(pk=sale.pk)
    return Room.objects.create(sale=sale, mode=mode, inlet_per_minute=INLET)


def _open(room: Room) -> None:
    room.sale.opens_at = timezone.now()
    room.sale.save(update_fields=["opens_at"])


def _page(room: Room) -> str:
    return f"{room.sale.get_absolute_url()}room/"


def _poll(room: Room) -> bytes:
    return f"GET {_page(room)}status.json HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def _join(room: Room, customers: Sequence[int]) -> float:
    """Let the customers join through the service in several processes; return the seconds."""
    connections.close_all()  # a forked process must not share them
    locks.close()

    def work(number: int) -> tuple[float, float]:
        began = time.monotonic()
        for customer in customers[number::PROCESSES]:
            service.join(sale=room.sale, customer_id=customer)
        return began, time.monotonic()

    with ProcessPool(work, PROCESSES) as pool:
        times = pool.results(timeout=2 * MAX_SECONDS)
    return float(max(ended for _, ended in times) - min(began for began, _ in times))


def _kill_redis() -> None:
    """Ask for a SIGKILL, and wait until another process serves."""

    def pid() -> int:
        with suppress(RedisError):
            found = Redis.from_url(settings.REDIS_URL).info()
            return 0 if found["loading"] else int(found["process_id"])
        return 0

    killed = pid()
    emit("kill")
    until(lambda: pid() not in (0, killed), "the restart of Redis", MAX_SECONDS)
