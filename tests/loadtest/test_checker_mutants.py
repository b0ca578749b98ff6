"""Five ways to break the shop's guards: the checker must find each, and nothing without them.

One buyer is stopped between look and write while another buys the last piece; on a real Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from inventory import services
from loadtest.checker import Findings, Promise, check
from loadtest.faults import until
from loadtest.recorder import Recorder, dump, history
from locking import LockError, lock, locks, policy
from locking.failpoints import armed
from locking.guard import PolicyLock
from shop import checkout
from shop.errors import ShopError
from shop.models import Sale
from tests.locking.scripted import PATIENCE
from tests.shop.making import a_customer, a_sale, fresh, put_in_force

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@dataclass
class Shop:
    """A sale of one piece, whose history is recorded."""

    folder: Path
    recorder: Recorder
    sale: Sale = field(default_factory=lambda: a_sale(stock=1))

    def buy(self) -> None:
        customer = a_customer()
        form = {"user": customer.pk, "key": "k", "quantity": 1}
        with suppress(ShopError), self.recorder.attempt("buy", **form) as said:
            placed = checkout.place_order(
                customer=customer, sale=fresh(self.sale), quantity=1, key="k"
            )
            said |= {"order": placed.order.number, "replayed": placed.replayed}

    def buy_behind_anothers_back(self, strike: Callable[[], object] = lambda: None) -> None:
        """The first is past its look when the fault strikes and the second buys."""
        looked, on = threading.Event(), threading.Event()

        def work() -> None:
            try:
                self.buy()
            finally:
                connections.close_all()

        first = threading.Thread(target=work)

        def stop() -> None:
            if threading.current_thread() is first:
                strike()
                looked.set()
                assert on.wait(PATIENCE)

        with armed("purchase.check", stop):
            first.start()
            assert looked.wait(PATIENCE)
            self.buy()
            on.set()
            first.join(PATIENCE)

    def findings(self, promise: Promise) -> Findings:
        return check(history(self.folder), dump(self.sale), promise)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Shop]:
    settings.PURCHASES_PER_GRANT = 1  # these buyers are threads, and each asks for itself
    monkeypatch.setattr(checkout, "LOCK_TIMEOUT", 0.2)
    locks.close()
    recorder = Recorder(tmp_path, "shop")
    recorder.watch_shop()
    yield Shop(tmp_path, recorder)
    recorder.close()
    locks.close()
    policy.forget()


def rules(findings: Findings) -> set[str]:
    return {breach.split(":")[0] for breach in findings.breaches}


@pytest.mark.parametrize("is_mutant", [False, True])
def test_no_lock(shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_force("redis", "naive")
    if is_mutant:
        for name in ("acquire", "release"):
            monkeypatch.setattr(locks["redis"], name, getattr(locks["none"], name))
    shop.recorder.watch(locks["redis"])
    shop.buy_behind_anothers_back()
    found = rules(shop.findings(Promise.of(locks["redis"].capabilities)))
    assert found >= {"exclusion", "oversold"} if is_mutant else not found


@pytest.mark.parametrize("is_mutant", [False, True])
def test_release_without_owner_check(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder is late, its successor holds, and a third one asks."""
    backend = locks["redis"]
    if is_mutant:
        monkeypatch.setattr(backend, "release", lambda claim, token: backend.break_lock(claim.name))
    shop.recorder.watch(backend)
    late = backend.lock("mutant", ttl=0.2, renew=False)
    assert late.acquire(timeout=PATIENCE)
    lease = late.lease
    assert lease is not None
    until(lambda: lease.lost, "the lease ending")

    # Holders are threads: the successor and the third are two of their own.
    successor, third = backend.lock("mutant", ttl=30), backend.lock("mutant", ttl=30)
    in_thread(lambda: successor.acquire(timeout=PATIENCE))
    with suppress(LockError):
        late.release()
    in_thread(lambda: third.acquire(timeout=0))
    found = rules(check(history(shop.folder), None, Promise.of(backend.capabilities)))
    backend.break_lock("mutant")
    assert found == ({"exclusion"} if is_mutant else set())


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE)


@pytest.mark.parametrize("is_mutant", [False, True])
def test_no_fence(shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's lock is taken away, so that two hold it: no promise of the lock's is kept."""
    put_in_force("redis", "fenced")
    if is_mutant:
        write, _, where = services.WRITE_CLAIMED.partition("WHERE")
        where = where.replace("fence_epoch =", "-1 <>").replace("fence_token =", "-1 <>")
        monkeypatch.setattr(services, "WRITE_CLAIMED", f"{write}WHERE{where}")
    shop.recorder.watch(locks["redis"])
    name = checkout.lock_name(shop.sale.pk)
    shop.buy_behind_anothers_back(lambda: locks["redis"].break_lock(name))
    findings = shop.findings(Promise(exclusive=False))
    assert findings.facts["overlaps"] > 0
    assert rules(findings) >= {"oversold", "fence"} if is_mutant else findings.ok


@pytest.mark.parametrize("is_mutant", [False, True])
def test_no_quantity_check(shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_force("none", "conditional")
    if is_mutant:
        change = services.CHANGE.replace("quantity >= %s", "0 < %s")
        floor = "quantity = CASE WHEN quantity > 0 THEN quantity + %s ELSE 0 END"
        monkeypatch.setattr(services, "CHANGE", change.replace("quantity = quantity + %s", floor))
    shop.recorder.watch(locks["none"])
    shop.buy_behind_anothers_back()
    found = rules(shop.findings(Promise.of(locks["none"].capabilities)))
    assert found >= {"oversold"} if is_mutant else not found


@pytest.mark.parametrize("is_mutant", [False, True])
def test_released_before_the_commit(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_force("redis", "naive")
    shop.recorder.watch(locks["redis"])
    strike: Callable[[], object] = lambda: None  # noqa: E731
    if is_mutant:
        monkeypatch.setattr(PolicyLock, "__exit__", lambda one, *args: one.lease and one.release())
        strike = lock(checkout.lock_name(shop.sale.pk)).release
    shop.buy_behind_anothers_back(strike)
    found = rules(shop.findings(Promise.of(locks["redis"].capabilities)))
    assert found >= {"oversold"} if is_mutant else not found
