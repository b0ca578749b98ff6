"""Rates and waits of the last minute, summed over all processes: a Redis hash for each second.

Once a second each process adds the growth of its own Prometheus metrics, from a thread, so that no
request waits for it. A second without a hash is one in which no process could write.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from celery.signals import worker_process_init
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started

from locking.metrics import WAIT
from shop.errors import ServiceUnavailable
from shop.platform.metrics import ORDERS, RESPONSES
from shop.platform.redis import run, scripts

logger = logging.getLogger("shop")

METRICS = (ORDERS, RESPONSES, WAIT)
PROCESS = "process"
"""Name of the count of processes; its label is the role."""
LIFETIME = 90
"""Seconds for which a second is kept."""
SECONDS = 60
DELAY = 2
"""Seconds after which all processes have published a second."""
RECENT = 5
"""Seconds over which the current value is averaged."""
ALIVE = 10
"""Seconds without news after which a process is gone."""
REFUSALS = [("shop_http_responses_total", status) for status in ("409", "429", "503")]
"""Counts of responses against the sale's rules, above a limit, and without a store."""
WIDTH, HEIGHT = 240, 48
"""The units of a chart's view box."""
Counts = dict[tuple[str, ...], int]
"""Counts by metric name and label values, the latter in the order of the labels' names."""

_ADD, _READ = scripts(__file__, "add_counts", "read_counts")
_threads: dict[int, threading.Thread] = {}
"""By process id: a forked child has none of its parent's threads."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value for each second, oldest first; None if it is unknown or does not exist."""

    values: Sequence[float | None]

    @property
    def now(self) -> float | None:
        """Return the mean of the last few seconds; None if they have no values."""
        known = [value for value in self.values[-RECENT:] if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def peak(self) -> float | None:
        """Return the largest value; None without any."""
        return max((value for value in self.values if value is not None), default=None)

    @property
    def lines(self) -> list[str]:
        """Return the points of a polyline for each run of known values."""
        found: list[str] = [""]
        for number, value in enumerate(self.values):
            if value is None:
                found.append("")
                continue
            x = _place(number)
            y = HEIGHT - 2 - (HEIGHT - 4) * value / (self.peak or 1)
            # Two points, so that a single value is visible.
            found[-1] += f"{x:.1f},{y:.1f} {x + 2:.1f},{y:.1f} "
        return [points for points in found if points]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMinute:
    """The last minute of all processes together."""

    orders: Series
    wait_ms: Series
    """95th percentile of the waits for the locks of sales."""
    refusals: Series
    processes: Counter[str]
    """The number of processes by role: web, worker or consumer."""
    last: int
    """Unix time of its last second."""

    def place(self, at: datetime) -> float | None:
        """Return the place of a moment on the charts; None if it is not in this minute."""
        number = at.timestamp() - self.last + SECONDS - 1
        return _place(number) if 0 <= number < SECONDS else None


def _place(number: float) -> float:
    return number * (WIDTH - 2) / (SECONDS - 1)


def start(role: str) -> None:
    """Publish from now on what this process counts; further calls change nothing."""
    thread = threading.Thread(target=publish, args=(role, _counted()), name="rates", daemon=True)
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


def publish(role: str, before: Counts) -> None:
    """Add the growth since `before` once a second, for ever; see `start`."""
    second = int(time.time())
    while True:
        now_second = int(time.time())
        # Woken a moment too early, or on time; else the thread was late, or the clock was set.
        second = second + 1 if second - now_second in (0, 1) else now_second
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


def read_last_minute() -> LastMinute:
    """Return the last minute. Raise ServiceUnavailable if Redis is unavailable."""
    last = int(time.time()) - DELAY
    seconds = read(last, SECONDS)
    running: Counter[str] = Counter()
    for counts in seconds[-ALIVE:]:
        running |= Counter({of[1]: n for of, n in (counts or {}).items() if of[0] == PROCESS})

    def series(value: Callable[[Counts], float | None]) -> Series:
        return Series([value(counts) if counts else None for counts in seconds])

    return LastMinute(
        orders=series(lambda counts: counts.get(("shop_orders_total",), 0)),
        wait_ms=series(_wait_ms),
        refusals=series(lambda counts: sum(counts.get(name, 0) for name in REFUSALS)),
        processes=running,
        last=last,
    )


def _wait_ms(counts: Counts) -> float | None:
    """Return the milliseconds below which 95 % of the waits lie, interpolated in their bucket."""
    waits: Counter[str] = Counter()
    for (name, *labels), number in counts.items():
        if name == "locking_wait_seconds_bucket" and labels[1] == "sale":
            waits[labels[2]] += number
    wanted, bound, count = 0.95 * waits.pop("+Inf", 0), 0.0, 0
    if not wanted:
        return None
    for upper, reached in sorted((float(le), number) for le, number in waits.items()):
        if reached >= wanted:
            return 1000 * (bound + (upper - bound) * (wanted - count) / (reached - count))
        bound, count = upper, reached
    return 1000 * bound
