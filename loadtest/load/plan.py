"""The parameters of a load test."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from inventory.models import WriteStrategy
from loadtest.kernel.faults import FAULTS
from loadtest.kernel.params import Params, PlanError, param
from shop.sales.guards import LOCKS

STORES = {"sqlite": "SQLite", "mariadb": "MariaDB", "postgresql": "PostgreSQL"}
SERVERS = ("redis", "redlock", "zookeeper")
"""The backends that need a server beside the database."""
NEEDS = {"mysql_session": "mariadb", "postgresql_session": "postgresql"}
"""The database that a backend needs."""
FAULT_CHOICES = {name: fault.description for name, fault in FAULTS.items()}
# A thread may need two connections, and a private server allows 400.
MOST_THREADS = 150


@dataclass(frozen=True, kw_only=True)
class Plan(Params):
    """One `lab run`: every backend with every write strategy, `repeats` times."""

    experiment = "run"
    backends: tuple[str, ...] = param(
        ("none", "redis"),
        "lock backend",
        **{"choices": LOCKS, "option": "backend"},
        default_text="none and redis",
        **{"label": _("Backends"), "is_named": True},
    )
    disciplines: tuple[str, ...] = param(
        ("naive",),
        "how stock is written",
        **{"choices": dict(WriteStrategy.choices), "default_text": "naive"},
        **{"option": "strategy discipline", "label": _("Write strategy"), "is_named": True},
    )
    buyers: int = param(
        200,
        "number of buyers, each wants one unit",
        **{"limits": (1, 100_000), "label": _("Buyers"), "is_named": True},
    )
    stock: int = param(50, "units on sale", limits=(1, 100_000), label=_("Stock"), is_named=True)
    processes: int = param(4, "worker processes", limits=(1, 32), label=_("Processes"))
    threads: int = param(8, "threads per process", limits=(1, 32), label=_("Threads per process"))
    """Of each process: this many of its buyers buy at once."""
    think_ms: float = param(
        5.0,
        "payment check between read and write, in milliseconds",
        **{"limits": (0, 1000), "label": _("Payment check (ms)")},
    )
    """Between read and write, where a shop checks the payment; the same for every backend."""
    seed: int = param(
        42,
        "random seed for the order of the buyers and their pauses",
        **{"limits": (0, 2**63 - 1), "label": _("Random seed"), "is_named": True},
    )
    """Determines the order of the buyers and their pauses, but not the winners of races."""
    repeats: int = param(1, "runs per backend", limits=(1, 100), label=_("Runs of each lock"))
    store: str = param(
        "sqlite",
        "database of the test",
        **{"choices": STORES, "default_text": "sqlite, or the one that is required"},
        label=_("Database"),
        note=_(
            "MySQL session needs MariaDB, PostgreSQL session needs PostgreSQL, and killing the "
            "database needs either of them."
        ),
    )
    patience: float = param(
        30.0, "how long a buyer retries while the shop is busy, in seconds", limits=(1, 600)
    )
    fault: str = param("none", choices=FAULT_CHOICES, label=_("Fault"))
    at: float = param(
        0.5,
        "share of the stock that is sold before the fault is injected",
        **{"limits": (0, 0.9), "label": _("Inject after"), "note": _("Share of the stock sold")},
    )
    strikes: int = param(1, "how many times the fault is injected", limits=(1, 20))
    """Spread over the rest of the stock."""

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> Self:
        """Return the plan of a command's options, on the database that they need."""
        needed = [NEEDS[one] for one in options["backends"] or () if one in NEEDS]
        if options["fault"] == "kill-database":
            needed.append("mariadb")
        store = options["store"] or next(iter(needed), "sqlite")
        return super().of(options, **{"store": store, **more})

    def check(self) -> None:
        """Raise PlanError for combinations that cannot be run."""
        if self.processes * self.threads > MOST_THREADS:
            raise PlanError(
                gettext("Use at most %(most)s threads in all: processes × threads per process.")
                % {"most": MOST_THREADS}
            )
        for one in self.backends:
            if (needed := NEEDS.get(one, self.store)) != self.store:
                raise PlanError(
                    gettext("The backend %(backend)s needs %(database)s as its database.")
                    % {"backend": LOCKS[one], "database": STORES[needed]}
                )
        if self.fault == "kill-database" and self.store == "sqlite":
            raise PlanError(gettext("The fault kill-database needs MariaDB or PostgreSQL."))

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the servers that it needs beside the database."""
        needed = dict.fromkeys((*self.backends, FAULTS[self.fault].server or ""))
        return tuple(one for one in needed if one in SERVERS)

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
        times, step = self.strikes if self.fault != "none" else 0, (1 - self.at) / self.strikes
        return tuple(int(self.stock * (self.at + step * n)) for n in range(times))
