"""An address without a server, and holders of locks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from locking import lock, locks

CLOSED_PORT = "redis://127.0.0.1:9/0"


@contextmanager
def held(name: str, alias: str = "", *, waiters: int = 0) -> Iterator[threading.Event]:
    """Hold a lock until the end or the event, while other threads wait for it."""
    go, has = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[alias].lock(name) if alias else lock(name, timeout=600):
            has.set()
            go.wait(600)
        connection.close()

    threads = [threading.Thread(target=hold) for _ in range(1 + waiters)]
    threads[0].start()
    assert has.wait(30)
    for thread in threads[1:]:
        thread.start()
    try:
        yield go
    finally:
        go.set()
        for thread in threads:
            thread.join(60)
