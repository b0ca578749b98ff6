"""The report of `manage.py lab bench room`: its table and its targets."""

from collections.abc import Sequence

from inventory.management.console import Rows
from loadtest.bench.results import Limit, Progress, Row, compare, events, remarks
from loadtest.charts import marked
from loadtest.load.stores import PrivateStores

__all__ = ["bench", "is_sound", "markdown", "remarks", "table"]

DURABLE = ("--appendonly", "yes")
"""As the Redis of docker-compose.yml."""
OUTAGE_SECONDS = 0.5
PEOPLE, WAITING = 100_000, 20_000
FIGURES: dict[str, tuple[str, str, float | None]] = {
    "joins_per_second": ("joins a second, through the service", ">=", 2000),
    "http_joins_per_second": ("joins a second, over HTTP", ">=", None),
    "places_lost": ("places lost when Redis was killed", "<=", 0),
    "bytes_per_person": ("bytes per person in Redis", "<=", 300),
    "polls_per_second": ("polls a second, through nginx", ">=", 10_000),
    "python_cores": ("cores of Python during these polls", "<=", 0.1),
    "shuffle_s": ("shuffle, s", "<=", 2),
    "correlation": ("absolute rank correlation of arrival and position", "<=", 0.02),
    "alone_p99_ms": ("p99 of admitted buyers, ms, while no one else waits", "<=", None),
    "p99_ms": ("p99 of admitted buyers, ms, while {waiting:,} wait and poll", "<=", 150),
    "refusals": ("their forms that were refused and sent again", "<=", None),
    "p99_ratio": ("ratio of the two", "<=", None),
    "waiting_polls_per_second": ("polls a second meanwhile", ">=", None),
    "sold_out_s": ('s until the last of them knows of "sold out"', "<=", 2),
}
"""By figure: its meaning, and its target."""


def bench(asked: Row, progress: Progress) -> Row:
    """Return the report of {"people"}; loadtest.bench.room.runner documents the others."""
    people = asked["people"]
    asked |= {"waiting": min(WAITING, people), "seconds": 3.0}
    asked |= {"accounts": min(10_000, people // 2), "units": min(2000, people // 10)}
    with PrivateStores("mariadb", ["redis"], redis_config=DURABLE) as stores:
        report: Row = {"settings": asked, "missing": stores.missing, "figures": {}}
        stores.environ |= {"BUY_LIMIT": "1000000/second", "WAITING_ROOM": "1"}
        for name in ("MAX_WAITING", "PURCHASES_PER_GRANT"):  # use the shop's defaults
            del stores.environ[name]
        for event in () if stores.missing else events(stores, "room", asked, report, progress):
            if event["event"] == "kill":
                stores.kill("redis", back_after=OUTAGE_SECONDS)
            elif event["event"] == "figures":
                report |= event["report"]
    limits: list[Limit] = [
        (meaning.format(**asked), report["figures"].get(name), sign, limit)
        for name, (meaning, sign, limit) in FIGURES.items()
        if limit is not None
    ]
    return report | {"targets": compare(limits)}


def is_sound(report: Row) -> bool:
    """Return True if all was measured and no room broke its rules."""
    return not report["missing"] and not report["breaches"]


def table(report: Row) -> tuple[Sequence[str], Rows]:
    """Return the measurements."""
    rows = [
        [meaning.format(**report["settings"]), _shown(report["figures"][name])]
        for name, (meaning, _sign, _limit) in FIGURES.items()
    ]
    return (f"{report['settings']['people']:,} people", "measured"), rows


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(report: Row) -> str:
    """Return the measurements as a Markdown table for the docs."""
    found = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    return f"\n{marked.table(*table(report))}\nOne run on {found}.\n"
