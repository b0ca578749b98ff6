"""Waiting slots of a sale in one process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from locking import LockTimeout
from shop.errors import QueueFull, SoldOut
from shop.sales import waiting_slots
from shop.sales.waiting_slots import is_queue_full, waiting_slot


def test_slots_are_limited_per_sale_and_become_free(settings) -> None:
    settings.MAX_WAITING = 2
    inside, leave = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        with waiting_slot(sale_id=1):
            inside.release()
            leave.wait(30)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(wait) for _ in range(2)]
        for _ in waiting:
            assert inside.acquire(timeout=30)
        with pytest.raises(QueueFull), waiting_slot(sale_id=1):
            pass
        with waiting_slot(sale_id=2):
            pass  # another sale has slots of its own
        leave.set()
        for each in waiting:
            each.result(30)
    with waiting_slot(sale_id=1):
        pass


def test_queue_that_moves_is_not_full(settings, monkeypatch) -> None:
    settings.MAX_WAITING = 1
    clock = [100.0]
    monkeypatch.setattr(waiting_slots, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with waiting_slot(sale_id=1):
        clock[0] += 100
    with waiting_slot(sale_id=1):  # a thread left the queue a moment ago
        with waiting_slot(sale_id=1):
            clock[0] += 2 * waiting_slots.STANDSTILL
            with pytest.raises(QueueFull), waiting_slot(sale_id=1):
                pass
        clock[0] += 2 * waiting_slots.STANDSTILL
        assert is_queue_full(1)


def test_lock_timeout_does_not_move_the_queue(settings) -> None:
    """Otherwise a lock that stays held would take all threads, one timeout after the other."""
    settings.MAX_WAITING = 1
    with pytest.raises(LockTimeout), waiting_slot(sale_id=1):
        raise LockTimeout
    with waiting_slot(sale_id=1), pytest.raises(QueueFull), waiting_slot(sale_id=1):
        pass
    with pytest.raises(SoldOut), waiting_slot(sale_id=1):
        raise SoldOut
    with waiting_slot(sale_id=1), waiting_slot(sale_id=1):
        pass  # the thread that raised SoldOut had obtained the lock
