"""Memory, descriptors and threads that many locks must not leave behind."""

import os
import threading
from pathlib import Path

from locking.lease import LockStore


def assert_nothing_leaks(locks: LockStore, times: int = 20_000) -> None:
    """Acquire and release `times` locks of 100 names; compare memory, descriptors and threads."""

    def resources() -> tuple[int, int, int]:
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        return memory, len(os.listdir("/proc/self/fd")), threading.active_count()

    def run(times: int) -> None:
        for number in range(times):
            lock = locks.lock(f"leak:{number % 100}", timeout=5)
            assert lock.acquire()
            lock.release()

    run(times // 10)
    before = resources()
    run(times)
    memory, files, threads = (new - old for old, new in zip(before, resources(), strict=True))
    assert memory < 4 << 20
    assert files <= 3, "more than a thread that releases a dropped lock of another test opens"
    assert threads <= 0
    assert not locks.held
    assert not locks.inspect()
