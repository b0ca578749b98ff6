"""One process full of buyers: its threads wait at the start line, then buy as the pages do."""

import ctypes
import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import ClassVar

from django.db import close_old_connections, connection, connections

from devservers.process import die_with_parent
from loadtest.history.recorder import Recorder
from loadtest.load.fault_plan import Strike
from loadtest.load.plan import Plan
from locking import failpoints, locks, policy
from shop.errors import STORE_ERRORS, Overloaded, ShopError
from shop.models import User
from shop.purchase.place_order import place_order
from shop.sales.queries import get_sale

logger = logging.getLogger(__name__)

THINK_AT = "purchase.check"
START_SECONDS = 30.0
PAUSE_SECONDS = (0.02, 0.1)
"""How long a buyer who was told "busy" waits before sending the form again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a buyer was told in the end. Times are monotonic seconds, the same in all processes."""

    kind: str
    sends: int
    began: float
    ended: float


class Told(ctypes.Structure):
    """An Answer in memory that all processes share; no kind yet: nobody has answered."""

    _fields_: ClassVar = [
        ("kind", ctypes.c_char * 16),
        ("sends", ctypes.c_int),
        ("began", ctypes.c_double),
        ("ended", ctypes.c_double),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The buyers of one run, of all processes."""

    plan: Plan
    slug: str
    customers: Sequence[User]
    start: Barrier
    served: "ctypes.Array[ctypes.c_long]"
    """How many buyers each thread has served: a counter each, so that none needs a lock."""
    sold: "ctypes.Array[ctypes.c_long]"
    """Pieces, counted likewise."""
    told: "ctypes.Array[Told]"
    """One for each customer."""
    strike: Strike | None
    backend: str
    history: Path
    """The folder in which each process records what it does."""


def run(crowd: Crowd, process: int, results: Connection, late: bool) -> None:
    """The main function of a process: let its share of the buyers buy, and report errors.

    `late`: it replaces one that was killed, and goes on where that one was.
    """
    die_with_parent()
    policy.invalidate()
    errors: list[str] = []
    recorder = Recorder(crowd.history)
    recorder.watch(locks[crowd.backend])
    recorder.watch_purchases()
    threads = [
        threading.Thread(
            target=_queue, args=(crowd, process * crowd.plan.threads + i, recorder, errors, late)
        )
        for i in range(crowd.plan.threads)
    ]

    def think() -> None:
        if crowd.strike is not None:
            crowd.strike.try_firing(crowd.sold)
        time.sleep(crowd.plan.think_ms / 1000)

    with failpoints.armed(THINK_AT, think):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    locks.close()
    recorder.close()
    results.send(errors)


def _queue(crowd: Crowd, slot: int, recorder: Recorder, errors: list[str], late: bool) -> None:
    """One thread: its buyers buy one after the other."""
    mine = range(slot, len(crowd.customers), crowd.plan.processes * crowd.plan.threads)
    pauses = random.Random(f"{crowd.plan.seed}:{slot}")
    try:
        _get_ready()
        if not late:
            crowd.start.wait(START_SECONDS)
        for number in mine[crowd.served[slot] :]:
            told = _buy(crowd, crowd.customers[number], recorder, pauses)
            crowd.told[number] = Told(told.kind.encode(), told.sends, told.began, told.ended)
            crowd.sold[slot] += told.kind == "order"
            crowd.served[slot] += 1
    except threading.BrokenBarrierError:
        """Another one said why."""
    except Exception as error:
        logger.exception("a buyer's thread ended")
        crowd.start.abort()
        errors.append(f"{type(error).__name__}: {error}")
    finally:
        connections.close_all()


def _get_ready() -> None:
    """Connect and look at the policy; a server that is slow to begin with has its time."""
    deadline = time.monotonic() + START_SECONDS / 2
    while True:
        try:
            connection.ensure_connection()
            policy.current()
            return
        except STORE_ERRORS:
            connections.close_all()
            if time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE_SECONDS[0])


def _buy(crowd: Crowd, customer: User, recorder: Recorder, pauses: random.Random) -> Answer:
    """Send the form, and the same one again while the shop says that nothing was decided."""
    key = f"{crowd.slug}:{customer.pk}"
    began = time.monotonic()
    sends = 0
    while True:
        sends += 1
        is_final = True
        try:
            with recorder.operation("buy", user=customer.pk, key=key, quantity=1) as said:
                sale = get_sale(slug=crowd.slug)
                placed = place_order(customer=customer, sale=sale, quantity=1, key=key)
                said |= {"order": placed.order.number, "replayed": placed.replayed}
            kind = "order"
        except ShopError as error:
            kind, is_final = error.code, not isinstance(error, Overloaded)
        except STORE_ERRORS:
            kind, is_final = "store_down", False
            close_old_connections()
        ended = time.monotonic()
        if is_final or ended - began >= crowd.plan.patience:
            return Answer(kind, sends, began, ended)
        time.sleep(pauses.uniform(*PAUSE_SECONDS))
