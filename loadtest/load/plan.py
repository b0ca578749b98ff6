"""The parameters of a load test, and their limits."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

from django.utils.translation import gettext as _

from inventory.models import WriteStrategy
from loadtest.kernel.faults import FAULTS
from locking.exceptions import unknown

STORES = {"sqlite": "SQLite", "mariadb": "MariaDB", "postgresql": "PostgreSQL"}
# The servers that a backend needs beside the database.
BACKENDS: dict[str, str | None] = {
    "none": None,
    "process": None,
    "database": None,
    "mysql_session": None,
    "postgresql_session": None,
    "redis": "redis",
    "redlock": "redlock",
    "zookeeper": "zookeeper",
}
NEEDS = {"mysql_session": "mariadb", "postgresql_session": "postgresql"}
"""The database that a backend needs."""
LIMITS = {
    "buyers": (1, 100_000),
    "stock": (1, 100_000),
    "processes": (1, 32),
    "threads": (1, 32),
    "think_ms": (0, 1000),
    "repeats": (1, 100),
    "patience": (1, 600),
    "at": (0, 0.9),
    "strikes": (1, 20),
    "seed": (0, 2**63 - 1),
}
ALWAYS_PRINTED = ("buyers", "stock", "seed")
"""Options that the command line always names."""
# A thread may need two connections, and a private server allows 400.
MOST_THREADS = 150


class PlanError(ValueError):
    """A load test cannot be run with these parameters."""


def keep_within(limits: Mapping[str, tuple[float, float]], asked: Mapping[str, Any]) -> None:
    """Raise PlanError if a number is outside its limits."""
    for name, (least, most) in limits.items():
        if name in asked and not least <= asked[name] <= most:
            option = f"--{name.replace('_', '-')}"
            raise PlanError(f"{option} must be between {least:,} and {most:,}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One `lab run`: every backend with every write strategy, `repeats` times."""

    backends: tuple[str, ...]
    disciplines: tuple[str, ...]
    buyers: int = 200
    stock: int = 50
    processes: int = 4
    threads: int = 8
    """Of each process: this many of its buyers buy at once."""
    think_ms: float = 5.0
    """Between read and write, where a shop checks the payment; the same for every backend."""
    seed: int = 42
    """Determines the order of the buyers and their pauses, but not the winners of races."""
    repeats: int = 1
    store: str = "sqlite"
    patience: float = 30.0
    """Seconds for which a buyer retries while the shop is overloaded."""
    fault: str = "none"
    at: float = 0.5
    """The share of the stock after which the fault is injected."""
    strikes: int = 1
    """How often it is injected, spread over the rest of the stock."""

    def __post_init__(self) -> None:
        for kind, asked, known in (
            ("backend", self.backends, tuple(BACKENDS)),
            ("write strategy", self.disciplines, WriteStrategy.values),
            ("store", (self.store,), tuple(STORES)),
            ("fault", (self.fault,), tuple(FAULTS)),
        ):
            if not asked:
                raise PlanError(f"Name at least one {kind}: {', '.join(known)}.")
            for name in asked:
                if name not in known:
                    raise PlanError(unknown(kind, name, known))
            if len(set(asked)) < len(asked):
                raise PlanError(f"Name each {kind} only once.")
        keep_within(LIMITS, asdict(self))
        if self.processes * self.threads > MOST_THREADS:
            raise PlanError(
                _("Use at most %(most)s threads in all: processes x threads per process.")
                % {"most": MOST_THREADS}
            )
        for one in self.backends:
            if (needed := NEEDS.get(one, self.store)) != self.store:
                raise PlanError(
                    _("The backend %(backend)s needs %(database)s as its database.")
                    % {"backend": one, "database": STORES[needed]}
                )
        if self.fault == "kill-database" and self.store == "sqlite":
            raise PlanError(_("The fault kill-database needs MariaDB or PostgreSQL."))

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the servers that it needs beside the database."""
        needed = [BACKENDS[one] for one in self.backends] + [FAULTS[self.fault].server]
        return tuple(dict.fromkeys(one for one in needed if one and one != "database"))

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return len(self.backends) * len(self.disciplines) * self.repeats

    def guards(self) -> Iterator[dict[str, Any]]:
        """Yield the backend, write strategy and number of each run, interleaved."""
        for repeat, discipline, backend in product(
            range(1, self.repeats + 1), self.disciplines, self.backends
        ):
            yield {"backend": backend, "discipline": discipline, "repeat": repeat}

    @property
    def strike_after(self) -> tuple[int, ...]:
        """Return the units sold before each injection."""
        step = (1 - self.at) / self.strikes
        return tuple(int(self.stock * (self.at + step * n)) for n in range(self.strikes))

    @property
    def contenders(self) -> int:
        """Return the number of buyers that buy at once."""
        return min(self.buyers, self.processes * self.threads)

    def command(self) -> str:
        """Return the command line with the same parameters."""
        lists = [("backend", one) for one in self.backends]
        lists += [("strategy", one) for one in self.disciplines]
        rest = [
            (field.name.replace("_", "-"), getattr(self, field.name))
            for field in fields(self)
            if field.name not in ("backends", "disciplines")
            and (field.name in ALWAYS_PRINTED or getattr(self, field.name) != field.default)
        ]
        options = " ".join(f"--{name} {value}" for name, value in lists + rest)
        return f"manage.py lab run {options}"
