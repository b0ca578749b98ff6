"""Five ways to break the guards of the shop: the checker finds each, and nothing otherwise.

One buyer is stopped between read and write while another buys the last unit, on a real Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from inventory import stock as services
from loadtest.kernel.history import history
from loadtest.kernel.judges import Findings, Promise
from locking import LockError, lock, locks
from locking.policy.lock import PolicyLock
from shop.sales.stock_lock import lock_name
from tests.fault_rows import check
from tests.loadtest.kernel.recorded import Shop, shop
from tests.shop.making import put_in_force
from verification.histories.lock_models import Lock

__all__ = ["shop"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]
mutant = pytest.mark.parametrize("is_mutant", [False, True])


def rules(findings: Findings) -> set[str]:
    return {breach.split(":")[0] for breach in findings.breaches}


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
def test_no_lock(shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_force("redis", "naive")
    if is_mutant:
        for name in ("acquire", "release"):
            monkeypatch.setattr(locks["redis"].backend, name, getattr(locks["none"].backend, name))
    shop.recorder.watch(locks["redis"])
    shop.buy_meanwhile(shop.buy)
    found = rules(shop.findings(Promise.of(locks["redis"].capabilities)))
    assert found >= {"exclusion", "oversold"} if is_mutant else not found
    for model in (Lock(), Lock(fenced=True)):
        assert shop.verdict(model) == ("illegal" if is_mutant else "legal")


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
def test_release_without_owner_check(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder is late, its successor holds the lock, and a third one asks for it."""
    backend = locks["redis"]
    if is_mutant:
        monkeypatch.setattr(
            backend.backend, "release", lambda claim, token: backend.break_lock(claim.name)
        )
    shop.recorder.watch(backend)
    late = backend.lock("mutant", ttl=0.2, renew=False)
    assert late.acquire(timeout=WAIT_TIMEOUT)
    lease = late.lease
    assert lease is not None
    until(lambda: lease.lost, "the lease ending")

    # Holders are threads: the successor and the third are two of their own.
    successor, third = backend.lock("mutant", ttl=30), backend.lock("mutant", ttl=30)
    in_thread(lambda: successor.acquire(timeout=WAIT_TIMEOUT))
    with suppress(LockError):
        late.release()
    in_thread(lambda: third.acquire(timeout=0))
    found = rules(check(history(shop.folder), None, Promise.of(backend.capabilities)))
    backend.break_lock("mutant")
    assert found == ({"exclusion"} if is_mutant else set())


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(WAIT_TIMEOUT)


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
def test_no_fence(shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of the first holder is broken, so that two hold it: the lock promises nothing."""
    put_in_force("redis", "fenced")
    if is_mutant:
        write, _, where = services.WRITE_CLAIMED.partition("WHERE")
        where = where.replace("fence_epoch =", "-1 <>").replace("fence_token =", "-1 <>")
        monkeypatch.setattr(services, "WRITE_CLAIMED", f"{write}WHERE{where}")
    shop.recorder.watch(locks["redis"])
    name = lock_name(shop.sale.pk)
    shop.buy_meanwhile(shop.buy, inject=lambda: locks["redis"].break_lock(name))
    findings = shop.findings(Promise(exclusive=False))
    assert findings.facts["overlaps"] > 0
    assert rules(findings) >= {"oversold", "fence"} if is_mutant else findings.ok


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
def test_no_quantity_check(shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_force("none", "conditional")
    if is_mutant:
        change = services.CHANGE.replace("quantity >= %s", "0 < %s")
        floor = "quantity = CASE WHEN quantity > 0 THEN quantity + %s ELSE 0 END"
        monkeypatch.setattr(services, "CHANGE", change.replace("quantity = quantity + %s", floor))
    shop.recorder.watch(locks["none"])
    shop.buy_meanwhile(shop.buy)
    found = rules(shop.findings(Promise.of(locks["none"].capabilities)))
    assert found >= {"oversold"} if is_mutant else not found


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
def test_released_before_the_commit(
    shop: Shop, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_force("redis", "naive")
    shop.recorder.watch(locks["redis"])
    strike: Callable[[], object] = lambda: None  # noqa: E731
    if is_mutant:
        monkeypatch.setattr(PolicyLock, "__exit__", lambda one, *args: one.lease and one.release())
        strike = lock(lock_name(shop.sale.pk)).release
    shop.buy_meanwhile(shop.buy, inject=strike)
    found = rules(shop.findings(Promise.of(locks["redis"].capabilities)))
    assert found >= {"oversold"} if is_mutant else not found
