"""A process of buyers: its threads wait for the start, then buy as the pages do."""

import ctypes
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import ClassVar

from django.db import close_old_connections, connection, connections

from devservers.faults.injectors import inject_into_self
from loadtest.kernel.faults import FAULTS, NAMES
from loadtest.kernel.history import Recorder
from loadtest.load.plan import Plan
from locking import failpoints, locks, policy
from shop.errors import STORE_ERRORS, Overloaded, ShopError
from shop.models import Sale, User
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.queries import get_sale

# fork: the processes share the code that is loaded already, so that four start at once.
FORK = multiprocessing.get_context("fork")
THINK_AT = "stock.read"
START_TIMEOUT = 30.0
RETRY_SECONDS = (0.02, 0.1)
"""Shortest and longest pause of a buyer before it retries."""


class Outcome(ctypes.Structure):
    """The final answer to a buyer, in memory that all processes share: its kind is empty before.

    Times are monotonic seconds, the same in all processes.
    """

    _fields_: ClassVar = [
        ("code", ctypes.c_char * 16),
        ("sends", ctypes.c_int),
        ("began", ctypes.c_double),
        ("ended", ctypes.c_double),
    ]

    @property
    def kind(self) -> str:
        """Return "order", or the code of the refusal."""
        return str(self.code.decode())


class SaleLoad:
    """The buyers of one run, in memory that all processes share."""

    def __init__(
        self, plan: Plan, slug: str, customers: Sequence[User], *, backend: str, history: Path
    ) -> None:
        self.plan, self.slug, self.customers, self.backend = plan, slug, customers, backend
        self.history = history
        """The directory in which each process records its events."""
        threads = plan.processes * plan.threads
        self.start = FORK.Barrier(threads + 1)
        self.served = RawArray("l", threads)
        """Buyers that each thread has served; one counter per thread needs no lock."""
        self.sold = RawArray("l", threads)
        """Units sold, counted likewise."""
        self.outcomes = RawArray(Outcome, len(customers))
        """One for each customer."""
        self.injected = FORK.Value("i")
        """Injections of the planned fault so far."""
        self.requested = FORK.Value("i")
        """The fault that the next holder injects, as an index of NAMES."""
        self.notices, self._notice = FORK.Pipe(duplex=False)
        """Tells the runner of each injection: its time, its process and its name."""

    def try_injecting(self) -> None:
        """Inject a fault if one is due; every holder calls this at the fail point."""
        number, after = self.injected.value, self.plan.strike_after
        is_due = number < len(after) and sum(self.sold) >= after[number]
        if not is_due and not self.requested.value:
            return
        with self.injected.get_lock():
            if is_due and self.injected.value == number:
                name = self.plan.fault
                self.injected.value += 1
            elif self.requested.value:
                name = NAMES[self.requested.value]
                self.requested.value = 0
            else:
                return  # another process was faster
        self._notice.send((time.monotonic(), os.getpid(), name))
        if holder := FAULTS[name].holder:
            inject_into_self(holder)


def run_buyers(load: SaleLoad, process: int, late: bool) -> None:
    """Let one process's share of the buyers buy; raise the first unexpected error.

    `late`: the process replaces one that was killed, and continues its work.
    """
    policy.invalidate()
    recorder = Recorder(load.history)
    recorder.watch(locks[load.backend])
    recorder.watch_purchases()
    first = process * load.plan.threads

    def think() -> None:
        load.try_injecting()
        time.sleep(load.plan.think_ms / 1000)

    with failpoints.armed(THINK_AT, think), ThreadPoolExecutor(load.plan.threads) as pool:
        slots = range(first, first + load.plan.threads)
        done = [pool.submit(_run_thread, load, slot, recorder, late) for slot in slots]
    locks.close()
    recorder.close()
    for one in done:
        one.result()


def _run_thread(load: SaleLoad, slot: int, recorder: Recorder, late: bool) -> None:
    """Run the buyers of one thread, one after the other."""
    numbers = range(slot, len(load.customers), load.plan.processes * load.plan.threads)
    pauses = random.Random(f"{load.plan.seed}:{slot}")
    try:
        if not late:
            _connect()
            load.start.wait(START_TIMEOUT)
        for number in numbers[load.served[slot] :]:
            customer = load.customers[number].pk
            outcome = buy(
                recorder,
                partial(get_sale, slug=load.slug),
                customer,
                key=f"{load.slug}:{customer}",
                patience=load.plan.patience,
                pauses=pauses,
            )
            load.outcomes[number] = outcome
            load.sold[slot] += outcome.kind == "order"
            load.served[slot] += 1
    except threading.BrokenBarrierError:
        """Another thread reports the reason."""
    except Exception:
        load.start.abort()
        raise
    finally:
        connections.close_all()


def _connect() -> None:
    """Connect and read the policy; retry while a server is busy with the others' connections."""
    deadline = time.monotonic() + START_TIMEOUT / 2
    while True:
        try:
            connection.ensure_connection()
            policy.current()
            return
        except STORE_ERRORS:
            connections.close_all()
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_SECONDS[0])


def buy(
    recorder: Recorder,
    get: Callable[[], Sale],
    customer: int,
    *,
    key: str,
    patience: float,
    pauses: random.Random,
) -> Outcome:
    """Buy one unit; with the same key again for `patience` seconds while nothing was decided."""
    began = time.monotonic()
    sends = 0
    while True:
        sends += 1
        is_final = True
        try:
            with recorder.operation("buy", user=customer, key=key, quantity=1) as result:
                placed = place_order(
                    PurchaseRequest(customer_id=customer, sale=get(), quantity=1, key=key)
                )
                result |= {"order": placed.order.number, "replayed": placed.replayed}
            kind = "order"
        except ShopError as error:
            kind, is_final = error.code, not isinstance(error, Overloaded)
        except STORE_ERRORS:
            kind, is_final = "store_down", False
            close_old_connections()
        ended = time.monotonic()
        if is_final or ended - began >= patience:
            return Outcome(kind.encode(), sends, began, ended)
        time.sleep(pauses.uniform(*RETRY_SECONDS))
