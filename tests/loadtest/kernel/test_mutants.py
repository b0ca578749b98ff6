"""Five ways to break the guards of the shop: the judges find each, and nothing otherwise.

One buyer is stopped between read and write while another buys the last unit, on a real Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from inventory import stock
from loadtest.kernel.history import history
from loadtest.kernel.judges import Promise, Run, facts
from locking import LockError, lock, locks
from locking.policy.lock import PolicyLock
from shop.sales.stock_lock import lock_name
from tests.fault_rows import judge
from tests.loadtest.kernel.recorded import Shop, shop
from tests.shop.making import put_in_force
from verification.histories.lock_models import Lock

__all__ = ["shop"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]
Patch = pytest.MonkeyPatch
Break = Callable[[Shop, Patch], object]
mutant = pytest.mark.parametrize("is_mutant", [False, True])


def rules(run: Run) -> set[str]:
    return {finding.judge for finding in judge(run)}


def no_lock(shop: Shop, patch: Patch) -> None:
    for name in ("acquire", "release"):
        patch.setattr(locks["redis"].backend, name, getattr(locks["none"].backend, name))


def no_fence(shop: Shop, patch: Patch) -> None:
    write, _, where = stock.WRITE_CLAIMED.partition("WHERE")
    where = where.replace("fence_epoch =", "-1 <>").replace("fence_token =", "-1 <>")
    patch.setattr(stock, "WRITE_CLAIMED", f"{write}WHERE{where}")


def no_quantity_check(shop: Shop, patch: Patch) -> None:
    change = stock.CHANGE.replace("quantity >= %s", "0 < %s")
    floor = "quantity = CASE WHEN quantity > 0 THEN quantity + %s ELSE 0 END"
    patch.setattr(stock, "CHANGE", change.replace("quantity = quantity + %s", floor))


def released_before_the_commit(shop: Shop, patch: Patch) -> Callable[[], object]:
    patch.setattr(PolicyLock, "__exit__", lambda one, *args: one.lease and one.release())
    return lock(lock_name(shop.sale.pk)).release


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
@pytest.mark.parametrize(
    ("guard", "broken", "found"),
    [
        (("redis", "naive"), no_lock, {"exclusion", "audit"}),
        (("redis", "fenced"), no_fence, {"audit", "fence"}),
        (("none", "conditional"), no_quantity_check, {"audit"}),
        (("redis", "naive"), released_before_the_commit, {"audit"}),
    ],
)
def test_guard_of_a_purchase(
    shop: Shop,
    guard: tuple[str, str],
    broken: Break,
    found: set[str],
    is_mutant: bool,
    monkeypatch: Patch,
) -> None:
    """Without its fence, the lock is broken as well, so that two hold it."""
    put_in_force(*guard)
    promise = Promise.of(locks[guard[0]].capabilities)
    strike = broken(shop, monkeypatch) if is_mutant else None
    shop.recorder.watch(locks[guard[0]])
    if broken is no_fence:
        promise = Promise(exclusive=False)
        strike = lambda: locks["redis"].break_lock(lock_name(shop.sale.pk))  # noqa: E731
    shop.buy_meanwhile(shop.buy, inject=strike or (lambda: None))
    run = shop.run(promise)
    assert rules(run) >= found if is_mutant else not rules(run)
    if broken is no_fence:
        assert facts(run)["overlaps"] > 0
    if broken is no_lock:
        for model in (Lock(), Lock(fenced=True)):
            assert shop.verdict(model) == ("illegal" if is_mutant else "legal")


@pytest.mark.faults(row="M", backend="redis", fired="mutant; control")
@mutant
def test_release_without_owner_check(shop: Shop, is_mutant: bool, monkeypatch: Patch) -> None:
    """A holder is late, its successor holds the lock, and a third one asks for it."""
    store = locks["redis"]
    if is_mutant:
        broken = lambda claim, token: store.break_lock(claim.name)  # noqa: E731
        monkeypatch.setattr(store.backend, "release", broken)
    shop.recorder.watch(store)
    late = store.lock("mutant", ttl=0.2, renew=False)
    assert late.acquire(timeout=WAIT_TIMEOUT)
    until(lambda: late.lease is not None and late.lease.lost, "the lease ending")
    # Holders are threads: the successor and the third are two of their own.
    successor, third = store.lock("mutant", ttl=30), store.lock("mutant", ttl=30)
    in_thread(lambda: successor.acquire(timeout=WAIT_TIMEOUT))
    with suppress(LockError):
        late.release()
    in_thread(lambda: third.acquire(timeout=0))
    found = rules(Run(history(shop.folder), promise=Promise.of(store.capabilities)))
    store.break_lock("mutant")
    assert found == ({"exclusion"} if is_mutant else set())


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(WAIT_TIMEOUT)
