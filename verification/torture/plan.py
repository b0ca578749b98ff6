"""Plans of torture runs, generated from a seed: the workload, and which fault begins when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Self

from verification.torture import catalogue
from verification.torture.catalogue import (
    ALIAS,
    DATABASES,
    OF_LINKS,
    OF_PROCESSES,
    ON_LINKS,
    STORES,
    TTL,
    Store,
)

LONG_TTL = 20.0
"""Seconds of a lease where a lock that is not released must not end by itself."""
PROCESSES = 3
"""Working processes."""
WORK_SECONDS = 5.0
"""Seconds of work in a run that sells nothing."""
SWITCH_AFTER, ANNOUNCED = 0.25, 1.4
"""Seconds after which the first switch begins, and has read the holders in the old backend."""
MANY = 16
"""Locks of a run with switches in which all holds are short, so that many locks are free."""
ALL, OPERATOR = 0, -1
"""Targets of a fault of links: all processes that work, and the one that switches the policy."""
EVERY = -1
"""The server of a fault of links that hits those to all servers."""
SPANS = ((0.1, 0.6), (0.8, 2.6))
"""Seconds of a fault, in leases: some end before a lease does."""
OPERATOR_SPAN = (2.2, 4.0)
"""The same if only the process that switches gets no reply: longer than it waits for a lease."""
LATE_SPAN = (1.1, 2.6)
"""The same for the COMMIT of an announcement: longer than a process may act on a policy."""
SHOP_SPANS = ((0.1, 0.6), (0.8, 3.5))
SHOP_SECONDS = (4.0, 4.0, 4.0, 9.0)
"""Seconds of a run of the shop, some so long that "sold out" becomes final."""


class Fault(NamedTuple):
    """A fault that begins `at` seconds after the start and lasts for `seconds`."""

    kind: str
    at: float
    seconds: float
    target: int
    """The number of the process or of the server; for a link, that of its process; see ALL."""
    server: int = EVERY
    """For a link, the server at its other end."""

    def __str__(self) -> str:
        to = "" if self.server == EVERY else f" to server {self.server}"
        return f"{self.kind} {self.target}{to} at {self.at:g} s for {self.seconds:g} s"


class Terms(NamedTuple):
    """The lock, the write strategy and the sales of a shop in a run."""

    lock: str
    """The alias of the lock, at first."""
    strategy: str
    is_queued: bool
    units: int
    """Units of each sale."""
    limit: int
    """Units that one customer may have."""
    switches: bool
    """The policy is switched while the sales are open."""
    seconds: float
    """Seconds of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    seed: int
    backend: str
    workload: str
    names: int
    """Number of locks."""
    faults: tuple[Fault, ...]
    ttl: float = TTL
    terms: Terms | None = None
    """Of a shop."""

    @property
    def seconds(self) -> float:
        """Return the seconds of work."""
        return self.terms.seconds if self.terms else WORK_SECONDS

    @property
    def switches(self) -> bool:
        """Return whether the policy is switched during the run."""
        return self.workload == "switch" or (self.terms is not None and self.terms.switches)

    @property
    def store(self) -> Store:
        """Return the backend and its servers."""
        return STORES[self.backend]

    @property
    def processes(self) -> int:
        """Return the number of working processes."""
        return 1 if self.backend == "process" else PROCESSES

    def only(self, numbers: Sequence[int]) -> Self:
        """Return the plan with these of its faults."""
        return replace(self, faults=tuple(self.faults[number] for number in numbers))

    def excludes(self) -> bool:
        """Return whether the backend promises one holder under these faults."""
        store, kinds = self.store, {fault.kind for fault in self.faults}
        if store.server == "Redis":  # one that restarts forgets its locks; RedLock waits
            return store.size > 1 or "restart" not in kinds
        # The server may end a session before its holder can know.
        ends_early = store.server in DATABASES and store.capabilities.session_bound
        return not (ends_early and kinds & {*catalogue.CUTTING_OFF, "restart"})

    def linked(self, number: int) -> bool:
        """Return whether a fault hits the links of a process, which else needs no proxy."""
        targets = {fault.target for fault in self.faults if fault.kind in ON_LINKS}
        return bool(targets & ({ALL, number} if number else {OPERATOR}))


def generate(seed: int, backend: str, workloads: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed."""
    rng = Random(f"{seed} {backend}")
    known = [one for one in catalogue.workloads_of(backend) if not workloads or one in workloads]
    # Chosen apart: the rest of a plan is the same if its workload is the only one.
    workload = rng.choice([Random(f"{seed} {backend}").choice(known)])
    kinds = catalogue.kinds_of(backend)
    plan = Plan(seed=seed, backend=backend, workload=workload, names=rng.choice((1, 2)), faults=())
    count, spans, faults = rng.randint(1, 5), SPANS, list[Fault]()
    if workload == "stock":
        plan, spans = replace(plan, terms=_terms(backend, rng)), SHOP_SPANS
    elif workload == "switch":
        plan = replace(plan, names=rng.choice((1, 4, MANY, MANY)))
        if plan.store.server and rng.random() < 2 / 3:
            faults += _against_a_switch(plan, rng)
            # A late COMMIT shows where many locks are free, a lost store where holds are long.
            is_late = faults[0].kind == "late-commit"
            plan = replace(plan, names=MANY if is_late else rng.choice((1, 4)))
    else:
        plan = replace(plan, names=rng.choice((1, 2, 4, 8)))
        kinds = [kind for kind in kinds if kind != "late-commit"]  # only a switch sends one
        if backend == "redis" and workload in catalogue.HOLDING and rng.random() < 0.5:
            # No fault may leave a lock without an owner that can release it.
            plan, kinds = replace(plan, ttl=LONG_TTL), [*OF_LINKS, "pause"]
    while len(faults) < count:
        # Half of the faults of a switch begin before it has read the holders of the old backend.
        is_early = workload == "switch" and rng.random() < 0.5
        kind = rng.choice(kinds)
        at = round(rng.uniform(0.1, ANNOUNCED if is_early else plan.seconds - 0.4), 2)
        seconds = 0.0 if kind == "kill" else _span(rng.choice(spans), rng)
        faults.append(Fault(kind, at, seconds, *_target(kind, plan, rng)))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _terms(backend: str, rng: Random) -> Terms:
    """Return the terms of a shop; only the control, which has no lock, writes with "naive"."""
    is_control = backend == "shop-none"
    lock = ALIAS if is_control else rng.choice((ALIAS, ALIAS, "none", "process"))
    return Terms(
        lock=lock,
        strategy="naive" if is_control else rng.choice(("conditional", "fenced")),
        is_queued=not is_control and rng.random() < 0.4,
        units=rng.choice((3, 10, 100)),
        limit=rng.choice((2, 5)),
        switches=lock == ALIAS and not is_control and rng.random() < 0.3,
        seconds=rng.choice(SHOP_SECONDS),
    )


def _against_a_switch(plan: Plan, rng: Random) -> Iterator[Fault]:
    """Yield what cuts the switching process off while it announces, for longer than a lease."""
    if plan.store.server in DATABASES and rng.random() < 0.5:  # the COMMIT of the announcement
        yield Fault("late-commit", 0.1, _span(LATE_SPAN, rng), OPERATOR)
        return
    # Where it is refused at once, it tries again soon, while the holders are still at work.
    kind, at = rng.choice((*catalogue.CUTTING_OFF, "cut")), round(rng.uniform(0.1, ANNOUNCED), 2)
    if plan.store.size == 1:
        yield Fault(kind, at, _span(OPERATOR_SPAN, rng), OPERATOR)
    else:  # it and the holders do without different servers
        mine, others = rng.sample(range(plan.store.size), 2)
        yield Fault(kind, at, _span(OPERATOR_SPAN, rng), OPERATOR, mine)
        yield Fault(kind, at, _span(OPERATOR_SPAN, rng), ALL, others)


def _span(limits: tuple[float, float], rng: Random) -> float:
    return round(rng.uniform(*limits) * TTL, 2)


def _target(kind: str, plan: Plan, rng: Random) -> tuple[int, int]:
    """Return the process or server, and the server of a link."""
    servers = len(plan.store.servers)
    if kind in OF_PROCESSES:
        return rng.randint(1, plan.processes), EVERY
    if kind not in ON_LINKS:
        return rng.randrange(servers), EVERY
    server = rng.randrange(servers) if servers > 1 and rng.random() < 0.5 else EVERY
    if plan.terms:  # its database comes last
        server = servers - 1 if kind == "late-commit" else rng.randrange(servers)
    worker = rng.randint(ALL, PROCESSES)
    return rng.choice((OPERATOR, worker)) if plan.workload == "switch" else worker, server
