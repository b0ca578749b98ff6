"""Rates and waits of the last minute, summed over all processes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shop.platform.rates import PROCESS, Counts, read

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
            x = number * (WIDTH - 2) / (len(self.values) - 1)
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
    attempts: float | None
    """Current attempts per second to acquire the lock of a sale."""
    processes: Counter[str]
    """The number of processes by role: web, worker or consumer."""


def read_last_minute() -> LastMinute:
    """Return the last minute. Raise ServiceUnavailable if Redis is unavailable."""
    seconds = read(int(time.time()) - DELAY, SECONDS)
    running: Counter[str] = Counter()
    for counts in seconds[-ALIVE:]:
        running |= Counter({of[1]: n for of, n in (counts or {}).items() if of[0] == PROCESS})

    def series(value: Callable[[Counts], float | None]) -> Series:
        return Series([value(counts) if counts else None for counts in seconds])

    return LastMinute(
        orders=series(lambda counts: counts.get(("shop_orders_total",), 0)),
        wait_ms=series(_wait_ms),
        refusals=series(lambda counts: sum(counts.get(name, 0) for name in REFUSALS)),
        attempts=series(lambda counts: _of_sales(counts, "locking_attempts_total").total()).now,
        processes=running,
    )


def _of_sales(counts: Counts, name: str) -> Counter[str]:
    """Return a metric of the locks of sales by its last label, summed over the backends."""
    found: Counter[str] = Counter()
    for of, count in counts.items():
        if of[0] == name and of[2] == "sale":
            found[of[3]] += count
    return found


def _wait_ms(counts: Counts) -> float | None:
    """Return the milliseconds below which 95 % of the waits lie, interpolated in their bucket."""
    waits = _of_sales(counts, "locking_wait_seconds_bucket")
    wanted, bound, count = 0.95 * waits.pop("+Inf", 0), 0.0, 0
    if not wanted:
        return None
    for upper, reached in sorted((float(le), number) for le, number in waits.items()):
        if reached >= wanted:
            return 1000 * (bound + (upper - bound) * (wanted - count) / (reached - count))
        bound, count = upper, reached
    return 1000 * bound
