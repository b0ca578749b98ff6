"""Plans of torture runs, generated from a seed: the workload, and which fault begins when."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from verification.torture import catalogue
from verification.torture.catalogue import (
    ALIAS,
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
"""Seconds of work in a run, unless it is longer; its faults begin in the first five."""
SWITCH_AFTER, ANNOUNCED = 0.25, 1.4
"""Seconds after which the first switch begins, and has read the holders in the old backend."""
MANY = 16
"""Locks of a run with switches in which all holds are short, so that many locks are free."""
FAULTS_PER_RUN = (1, 5)
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
ATTACKED_SHARE = 2 / 3
"""Share of the switches that are hit while they are announced."""
SHOP_SECONDS = (4.0, 4.0, 4.0, 9.0)
"""Seconds of a run of the shop, some so long that "sold out" becomes final."""
LONGEST_OUTAGE = 3.5
"""Most seconds of a fault of the shop."""


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
    work_seconds: float = WORK_SECONDS

    @property
    def seconds(self) -> float:
        """Return the seconds of work."""
        return self.terms.seconds if self.terms else self.work_seconds

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
        if store.server == "Redis":
            # RedLock delays restarts. Under contention a claim wins with the least majority, so
            # one clock that jumps is enough to lose it.
            return not kinds & ({"clock"} if store.size > 1 else catalogue.FORGETTING)
        if "promote" in kinds:  # the standby lacks the last grants
            return False
        ends_early = store.server in catalogue.DATABASES and store.capabilities.session_bound
        return not (ends_early and kinds & catalogue.SESSION_ENDING)

    def linked(self, number: int) -> bool:
        """Return whether a fault hits the links of a process, which else needs no proxy.

        A promoted standby has another port, to which the links are redirected.
        """
        targets = {fault.target for fault in self.faults if fault.kind in ON_LINKS}
        is_hit = bool(targets & ({ALL, number} if number else {OPERATOR}))
        return is_hit or any(fault.kind == "promote" for fault in self.faults)

    def as_json(self) -> dict[str, Any]:
        """Return the plan in values that JSON can represent."""
        return asdict(self) | {"faults": [list(fault) for fault in self.faults]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Return the plan that `as_json` described."""
        faults = tuple(Fault(*fault) for fault in found["faults"])
        terms = Terms(*found["terms"]) if found.get("terms") else None
        return cls(**{**found, "faults": faults, "terms": terms})


def generate(seed: int, backend: str, workloads: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed."""
    if STORES[backend].shop:
        return _generate_shop(seed, backend)
    rng = random.Random(f"{seed} {backend}")
    known = [one for one in catalogue.workloads_of(backend) if not workloads or one in workloads]
    workload, kinds = rng.choice(known), catalogue.kinds_of(backend)
    names = rng.choice((1, 4, MANY, MANY) if workload == "switch" else (1, 2, 4, 8))
    has_long_leases = backend == "redis" and workload in catalogue.HOLDING and rng.random() < 0.5
    if has_long_leases:  # no fault may leave a lock without an owner that can release it
        kinds = [*OF_LINKS, "pause", "exhausted"]
    elif workload == "two-stores":  # a stopped process may lose the leases of both
        kinds = [kind for kind in kinds if kind not in ("stop", "late-commit")]
    elif STORES[backend].server in catalogue.DATABASES:  # a lost commit would undo a switch
        unfit = "promote" if workload == "switch" else "late-commit"
        kinds = [kind for kind in kinds if kind != unfit]
    ttl = LONG_TTL if has_long_leases else TTL
    plan = Plan(seed=seed, backend=backend, workload=workload, names=names, faults=(), ttl=ttl)
    count, faults = rng.randint(*FAULTS_PER_RUN), list[Fault]()
    if workload == "switch" and plan.store.server and rng.random() < ATTACKED_SHARE:
        faults += _against_a_switch(plan, rng)
        # A late COMMIT shows where many locks are free, a lost store where holds are long.
        plan = replace(plan, names=MANY if faults[0].kind == "late-commit" else rng.choice((1, 4)))
    while len(faults) < count:
        # Half of the faults of a switch begin before it has read the holders of the old backend.
        last = ANNOUNCED if plan.workload == "switch" and rng.random() < 0.5 else plan.seconds - 0.3
        kind, at = rng.choice(kinds), round(rng.uniform(0.1, last), 2)
        seconds = 0.0 if kind == "kill" else _span(rng.choice(SPANS), rng)
        faults.append(Fault(kind, at, seconds, *_target(kind, plan, rng)))
    return replace(plan, faults=_in_order(faults))


def _against_a_switch(plan: Plan, rng: random.Random) -> Iterator[Fault]:
    """Yield what cuts the switching process off while it announces, for longer than a lease."""
    if (
        plan.store.server in catalogue.DATABASES and rng.random() < 0.5
    ):  # the COMMIT of the announcement
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


def _generate_shop(seed: int, backend: str) -> Plan:
    """Return the plan of a shop; only the control, which has no lock, writes with "naive"."""
    rng, store = random.Random(f"{seed} {backend}"), STORES[backend]
    is_control = backend == "shop-none"
    strategy = "naive" if is_control else rng.choice(("conditional", "fenced"))
    lock = ALIAS if is_control else rng.choice((ALIAS, ALIAS, "none", "process"))
    terms = Terms(
        lock=lock,
        strategy=strategy,
        is_queued=not is_control and rng.random() < 0.4,
        units=rng.choice((3, 10, 100)),
        limit=rng.choice((2, 5)),
        switches=lock == ALIAS and not is_control and rng.random() < 0.3,
        seconds=rng.choice(SHOP_SECONDS),
    )
    known, faults = catalogue.kinds_of(backend), []
    for _ in range(rng.randint(*FAULTS_PER_RUN)):
        kind, at = rng.choice(known), round(rng.uniform(0.1, terms.seconds - 0.5), 2)
        servers = [n for n, name in enumerate(("Redis", store.shop)) if _can_hit(kind, name)]
        seconds = rng.choice((rng.uniform(0.1, 0.6), rng.uniform(0.8, LONGEST_OUTAGE)))
        seconds = 0.0 if kind == "kill" else round(seconds, 2)
        server = rng.choice(servers or [0])
        if kind in OF_PROCESSES:
            faults.append(Fault(kind, at, seconds, rng.randint(1, PROCESSES)))
        elif kind in ON_LINKS:
            faults.append(Fault(kind, at, seconds, rng.randint(ALL, PROCESSES), server))
        else:
            faults.append(Fault(kind, at, seconds, server))
    options: dict[str, Any] = {"ttl": TTL, "terms": terms}
    options |= {"names": rng.choice((1, 2)), "faults": _in_order(faults)}
    return Plan(seed=seed, backend=backend, workload="stock", **options)


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _can_hit(kind: str, server: str) -> bool:
    return server in catalogue.SHOP_FAULTS and (
        kind in OF_LINKS or kind in catalogue.SHOP_FAULTS[server]
    )


def _span(limits: tuple[float, float], rng: random.Random) -> float:
    return round(rng.uniform(*limits) * TTL, 2)


def _target(kind: str, plan: Plan, rng: random.Random) -> tuple[int, int]:
    """Return the process or server, and the server of a link."""
    if kind in OF_PROCESSES:
        return rng.randint(1, plan.processes), EVERY
    if kind not in ON_LINKS:
        return rng.randrange(plan.store.size), EVERY
    worker, size = rng.randint(ALL, PROCESSES), plan.store.size
    server = rng.randrange(size) if size > 1 and rng.random() < 0.5 else EVERY
    return rng.choice((OPERATOR, worker)) if plan.workload == "switch" else worker, server
