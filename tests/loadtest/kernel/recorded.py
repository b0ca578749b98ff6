"""A sale whose history is recorded, so that a test of the shop can end in the checker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from devservers.faults.waiting import WAIT_TIMEOUT
from loadtest.kernel.history import Recorder, dump, history
from loadtest.kernel.judges import Promise, Run
from locking import locks
from locking.failpoints import armed
from shop.errors import ShopError
from shop.models import Sale
from shop.purchase import place_order as checkout
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import a_customer, a_sale, fresh
from verification.histories import linearizability
from verification.histories.linearizability import Model


@dataclass
class Shop:
    """A shop with one unit for sale, unless a test needs more."""

    folder: Path
    recorder: Recorder
    sale: Sale = field(default_factory=lambda: a_sale(stock=1))

    def buy(self) -> str:
        """Buy as another customer; return "order" or the error code."""
        customer = a_customer()
        form = {"user": customer.pk, "key": "k", "quantity": 1}
        try:
            with self.recorder.operation("buy", **form) as said:
                placed = checkout.place_order(
                    PurchaseRequest(
                        customer_id=customer.pk, sale=fresh(self.sale), quantity=1, key="k"
                    )
                )
                said |= {"order": placed.order.number, "replayed": placed.replayed}
        except ShopError as error:
            return error.code
        return "order"

    def buy_meanwhile(
        self, act: Callable[[], object], *, inject: Callable[[], object] = lambda: None
    ) -> str:
        """Return the outcome of a purchase that waits between read and write while `act` runs.

        `inject` is called in its thread at that point.
        """
        has_read, proceed, outcomes = threading.Event(), threading.Event(), list[str]()

        def work() -> None:
            try:
                outcomes.append(self.buy())
            finally:
                connections.close_all()

        first = threading.Thread(target=work)

        def stop() -> None:
            if threading.current_thread() is first:
                inject()
                has_read.set()
                assert proceed.wait(WAIT_TIMEOUT)

        with armed("stock.read", stop):
            first.start()
            try:
                assert has_read.wait(WAIT_TIMEOUT)
                act()
            finally:
                proceed.set()
                first.join(WAIT_TIMEOUT)
        return outcomes[0]

    def run(self, promise: Promise) -> Run:
        return Run(history(self.folder), dump(self.sale), promise)

    def verdict(self, model: Model) -> str:
        """Return the verdict on the lock of the sale as if it were `model`."""
        (found,) = linearizability.check(history(self.folder), model)
        return found.verdict


@pytest.fixture
def shop(tmp_path: Path, settings: Any) -> Iterator[Shop]:
    settings.PURCHASES_PER_GRANT = 1  # these buyers are threads, and each asks for itself
    settings.LOCK_TIMEOUT = 0.2
    settings.HARD_DEADLINE = WAIT_TIMEOUT  # a stopped buyer writes later, too
    locks.close()
    recorder = Recorder(tmp_path, "shop")
    recorder.watch_purchases()
    yield Shop(tmp_path, recorder)
    recorder.close()
    locks.close()
