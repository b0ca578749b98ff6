"""The counts of all processes in each of the last seconds: one expiring Redis hash per second.

Once a second each process adds the growth of its own Prometheus metrics, from a thread, so that no
request waits for it. A second without a hash is one in which no process could write.
"""

import json
import logging
import os
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

from celery.signals import worker_process_init
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started

from locking.backends.redis.connection import Script
from locking.metrics import OUTCOMES, WAIT
from shop.errors import ServiceUnavailable
from shop.platform.metrics import ORDERS, RESPONSES
from shop.platform.redis import run

logger = logging.getLogger("shop")

METRICS = (ORDERS, RESPONSES, OUTCOMES, WAIT)
PROCESS = "process"
"""Name of the count of processes; its label is the role."""
LIFETIME = 90
"""Seconds for which a second is kept."""
Counts = dict[tuple[str, ...], int]
"""Counts by metric name and label values, the latter in the order of the labels' names."""

_ADD, _READ = (
    Script(str(Path(__file__).parent / "lua" / f"{name}.lua"))
    for name in ("add_counts", "read_counts")
)
_threads: dict[int, threading.Thread] = {}
"""By process id: a forked child has none of its parent's threads."""


def start(role: str) -> None:
    """Publish from now on what this process counts; further calls change nothing."""
    thread = threading.Thread(target=_publish, args=(role, _counted()), name="rates", daemon=True)
    if _threads.setdefault(os.getpid(), thread) is thread:
        thread.start()


def connect_processes() -> None:
    """Start in each process that serves requests of a web server or runs tasks."""

    def serve_first(**_: Any) -> None:
        request_started.disconnect(serve_first, sender=WSGIHandler)
        start("web")

    request_started.connect(serve_first, sender=WSGIHandler, weak=False)
    worker_process_init.connect(lambda **_: start("worker"), weak=False)


def read(last: int, seconds: int) -> list[Counts | None]:
    """Return the counts of the `seconds` up to Unix time `last`; None for an unknown second.

    Raise ServiceUnavailable if Redis is unavailable.
    """
    keys = [_key(second) for second in range(last - seconds + 1, last + 1)]
    return [
        {
            tuple(json.loads(field)): int(count)
            for field, count in zip(flat[::2], flat[1::2], strict=True)
        }
        or None
        for flat in run(_READ, keys)
    ]


def add(second: int, counts: Counts) -> None:
    """Add counts to a second. Raise ServiceUnavailable if Redis is unavailable."""
    fields = ((json.dumps(name), count) for name, count in counts.items())
    run(_ADD, [_key(second)], LIFETIME, *chain.from_iterable(fields))


def _key(second: int) -> str:
    return f"rates:{second}"


def _publish(role: str, before: Counts) -> None:
    second = int(time.time())
    while True:
        second = max(second + 1, int(time.time()))
        time.sleep(min(1.0, max(0.0, second - time.time())))
        now = _counted()
        grown = {name: count - before.get(name, 0) for name, count in now.items()}
        before = now
        try:
            add(second - 1, {(PROCESS, role): 1, **{of: n for of, n in grown.items() if n > 0}})
        except ServiceUnavailable:
            pass  # these counts are lost
        except Exception:
            logger.exception("Publishing the rates of the last second failed")


def _counted() -> Counts:
    """Return the counts of this process since its start."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): int(sample.value)
        for metric in METRICS
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(("_total", "_bucket"))
    }
