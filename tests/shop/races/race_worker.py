"""A process of the shop that runs calls of tests/shop/races/actions.py at the same moment.

worker.start({"do": "buy", ...}, pause_at="stock.read")
worker.reached()                # a call waits at that fail point
worker.proceed()
worker.results()                # what each call returned
"""

import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from devservers.base import injected_faults
from devservers.faults.worker import WorkerProcess, send_to_parent
from locking import locks
from shop.models import Sale, User
from shop.purchase import tokens
from tests.shop.making import a_customer

TIMEOUT = 30.0
TTL = 30.0
"""Seconds of the leases of such a process, which no pause of a busy machine ends."""


class RaceWorker(WorkerProcess):
    """The parent's side."""

    def __init__(self, database_url: str, redis_url: str | None = None) -> None:
        urls = {"DATABASE_URL": database_url, "REDIS_URL": redis_url or os.environ["REDIS_URL"]}
        super().__init__("tests.shop.races.race_worker:RaceCommands", urls)
        self.is_done = True
        """True once the results of all calls have arrived."""

    def _receive(self, key: str, seconds: float = TIMEOUT) -> Any:
        line = self.receive(seconds)
        assert key in line, f"expected {key!r}, received {line}"
        return line[key]

    def prepare(
        self, *calls: dict[str, Any], pause_at: str | None = None, without: Sequence[str] = ()
    ) -> None:
        """Bring calls to the start line; `without` names functions that do nothing there."""
        self.is_done = False
        self.call("prepare", calls=calls, pause_at=pause_at, without=without)

    def go(self) -> None:
        self.send("go")

    def start(self, *calls: dict[str, Any], **options: Any) -> None:
        self.prepare(*calls, **options)
        self.go()

    def run_until(self, point: str, *calls: dict[str, Any], **options: Any) -> None:
        """Start calls and wait until one has come to the fail point."""
        self.start(*calls, pause_at=point, **options)
        self.reached()

    def reached(self) -> None:
        self._receive("reached")
        injected_faults["RaceWorker held at a fail point"] += 1

    def proceed(self) -> None:
        self.send("proceed")

    def results(self, seconds: float = TIMEOUT) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = self._receive("done", seconds)
        self.is_done = True
        return results

    def run(self, *calls: dict[str, Any]) -> list[dict[str, Any]]:
        self.start(*calls)
        return self.results()

    def finish(self) -> list[dict[str, Any]]:
        self.proceed()
        return self.results()


def a_form(sale: Sale, **what: Any) -> dict[str, Any]:
    """Return the call of a new customer who sends the form of a sale."""
    do = "reserve" if sale.is_queued else "buy"
    return {"do": do, "sale": sale.pk, "customer": a_customer().pk, "key": "k", **what}


def form_of(sale: Sale, customer: User, key: str = "k", *, is_first: bool = True) -> dict:
    """Return the call that posts a form of an unknown session, so that only its token counts."""
    session = secrets.token_hex(16)
    to = {"customer_id": customer.pk, "sale_id": sale.pk, "is_first": is_first}
    token = tokens.issue(key=key, session=session, **to)
    form = {"idempotency_key": key, "quantity": 1, "purchase_token": token, "attempt": 1}
    path = f"{sale.get_absolute_url()}buy/"
    return {"do": "send", "path": path, "session": session, "form": form}


def end_leases(backend: str) -> None:
    """End the leases of killed and stopped processes now, instead of after TTL."""
    for held in locks[backend].inspect():
        locks[backend].break_lock(held.name)


def outcomes(*results: dict[str, Any]) -> Counter[str]:
    """Count the orders and reservations, and the errors by name."""
    return Counter(result.get("error", "order") for result in results)


def at_once(workers: list[RaceWorker], calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Start the calls together, spread over the workers; return their results."""
    for place, worker in enumerate(workers):
        worker.prepare(*calls[place :: len(workers)])
    for worker in workers:
        worker.go()
    return [result for worker in workers for result in worker.results()]


class RaceCommands:
    """The child's side: calls that start together, each in a thread of its own."""

    def __init__(self) -> None:
        """Set long leases, short waits, and no rate limit."""
        from django.conf import settings

        settings.LOCK_TIMEOUT = 2.0
        settings.HARD_DEADLINE = 1.3 * settings.LOCK_TIMEOUT
        settings.BUY_LIMIT = "100000/second"
        for conf in settings.LOCKS.values():
            conf["TTL"] = TTL

    def prepare(
        self, calls: list[dict[str, Any]], pause_at: str | None, without: list[str]
    ) -> dict[str, Any]:
        from locking import failpoints, policy
        from shop.purchase import admission
        from tests.shop.races import actions

        for forget in (policy.invalidate, admission.clear, tokens.clear):
            forget()
        self._go, self._proceed = threading.Event(), threading.Event()
        self._pause_at, self._first = pause_at, threading.Lock()
        self._results: list[dict[str, Any]] = [{}] * len(calls)
        patches = ExitStack()
        for name in without:
            patches.enter_context(patch(name, lambda *args, **kwargs: []))
        patches.enter_context(patch.object(actions, "proceed", self._proceed))
        if pause_at:
            patches.enter_context(failpoints.armed(pause_at, self._pause))
        threads = [threading.Thread(target=self._run, args=each) for each in enumerate(calls)]
        for thread in threads:
            thread.start()

        def finish() -> None:
            for thread in threads:
                thread.join()
            patches.close()
            send_to_parent({"done": self._results})

        threading.Thread(target=finish).start()
        return {"ready": len(calls)}

    def go(self) -> None:
        self._go.set()

    def proceed(self) -> None:
        self._proceed.set()

    def _pause(self) -> None:
        """Make the first call at the fail point wait for the parent."""
        if self._first.acquire(blocking=False):
            send_to_parent({"reached": self._pause_at})
            self._proceed.wait(TIMEOUT)

    def _run(self, place: int, call: dict[str, Any]) -> None:
        from django.db import connections

        from tests.shop.races import actions

        act = getattr(actions, call.pop("do"))
        self._go.wait(TIMEOUT)
        began = time.monotonic()
        try:
            result = act(**call)
        except Exception as error:  # noqa: BLE001 - becomes the call's result
            result = {"error": type(error).__name__, "text": str(error)}
        finally:
            connections.close_all()
        self._results[place] = {**result, "seconds": time.monotonic() - began}
