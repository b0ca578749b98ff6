"""Lock policy, stores, held locks and rates, at most a second old while the stores respond.

One process at a time reads them. While it waits for a store, the other viewers get the previous
state and its age.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from django.utils import timezone

from locking import LockUnavailable, locks, policy, single_flight
from locking.claims import Held
from locking.models import JobRun, LockPolicy, LockPolicyChange
from locking.names import RESERVED
from shop.administration import alerts
from shop.administration.audit import StockAudit
from shop.errors import ServiceUnavailable
from shop.models import Sale
from shop.operations.probes import STORES, Probe, ProbeResult, probe_all
from shop.operations.rates import LastMinute, read_last_minute
from shop.reservations import store
from shop.sales.stock_lock import lock_name

TTL = 0.9
STALE = 10.0
"""Seconds after TTL for which the previous state is shown during a read."""
PROBE_SECONDS = 1.5
"""A store that takes longer counts as down."""
HISTORY = 10
JOB_HISTORY = timedelta(hours=1)
RECENT = timedelta(days=1)
"""Time after its end for which the lock of a sale is shown with the sale."""
IN_MEMORY = ("none", "process")
"""Backends without a store."""
OWN_LOCKS = "build:ops:"
"""Prefix of the locks that reading this state acquires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRow:
    """A held lock."""

    backend: str
    held: Held
    epoch: int | None
    """The epoch of the token; None if the policy grants no such lock, or it is not of a sale."""
    sale: str
    """The slug of the sale that the lock guards; empty for other locks."""
    is_stale: bool = False
    """The lock belongs to an older policy or its token is older than the stock row's fence, so
    writes under it are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The lock policy, the stores and the locks at `as_of`; in an outage only the stores."""

    as_of: datetime
    stores: Mapping[str, ProbeResult]
    """The shop's database, Redis and cache."""
    locks: Mapping[str, ProbeResult] = field(default_factory=dict)
    """The lock backends that have a store."""
    nodes_down: Sequence[str] = ()
    """The servers of the active lock that do not respond, while the others keep it available."""
    policy: LockPolicy | None = None
    """None in an outage."""
    history: Sequence[LockPolicyChange] = ()
    rows: Sequence[LockRow] = ()
    unknown: Sequence[str] = ()
    """Locks that cannot list the holders of other processes, or did not respond."""
    open_sales: int = 0
    """Open sales that customers find; load tests have others."""
    queued_sales: int = 0
    """Open sales that are queued."""
    oldest_reservation: float = 0.0
    """Seconds for which the oldest reservation of an open sale has waited for its order."""
    last_job_at: datetime | None = None
    """End of the last job of the last hour."""
    audit: tuple[datetime, list[StockAudit]] | None = None
    minute: LastMinute | None = None
    """None while Redis is unavailable."""

    @property
    def switches(self) -> list[tuple[float, LockPolicyChange]]:
        """Return the switches of the last minute and their places on its charts."""
        place = self.minute.place if self.minute else lambda at: None
        found = [(place(change.changed_at), change) for change in self.history]
        return [(x, change) for x, change in found if x is not None]

    @property
    def down(self) -> list[str]:
        """Return the shop's stores that do not respond."""
        return [name for name, probed in self.stores.items() if not probed.ok]

    @property
    def is_lock_down(self) -> bool:
        """Return True if the active lock does not respond."""
        active = self.locks.get(self.policy.backend) if self.policy else None
        return active is not None and not active.ok

    @property
    def safe_target(self) -> str:
        """Return the first other lock that responds and spans processes; empty without one."""
        active = self.policy.backend if self.policy else ""
        others = (name for name, probed in self.locks.items() if probed.ok and name != active)
        return next(others, "")


def get_live_state() -> LiveState:
    """Return the state, read at most a second ago."""
    return single_flight.get_or_build("ops:live", _read_live, ttl=TTL, stale=STALE)


def get_outage() -> LiveState:
    """Return only whether the shop's stores respond, as `/readyz` publishes it."""
    return LiveState(as_of=timezone.now(), stores=_probe(STORES))


invalidate = partial(single_flight.invalidate, "ops")
"""Make the next viewer read the live state again."""
_probe = partial(probe_all, seconds=PROBE_SECONDS)


def _read_live() -> LiveState:
    as_of = now = timezone.now()
    policy.finish_overdue_switch()
    # Read before the holders: a holder that is older than these fences is stale.
    recent = Sale.objects.filter(closes_at__gt=now - RECENT)
    row, sales = policy.stored_policy(), list(recent.select_related("product", "stock"))
    probes: dict[str, Probe] = {f"lock {alias}": partial(_probe_backend, alias) for alias in locks}
    probes["nodes"] = lambda: locks[row.backend].backend.nodes_down()
    found = _probe(STORES | probes)
    backends = {alias: found[f"lock {alias}"] for alias in locks}
    if not found["database"].ok:
        raise LockUnavailable  # rather than wait for each query
    selling = [sale for sale in sales if sale.opens_at <= now < sale.closes_at]
    queued = [sale for sale in selling if sale.is_queued]
    done = JobRun.objects.filter(state=JobRun.State.DONE, scheduled_for__gt=now - JOB_HISTORY)
    oldest, minute = 0.0, None
    with suppress(ServiceUnavailable):
        minute = read_last_minute()
        oldest = max((store.oldest_age(sale=sale) for sale in queued), default=0.0)
    return LiveState(
        as_of=as_of,
        nodes_down=found["nodes"].value or (),
        policy=row,
        history=list(LockPolicyChange.objects.all()[:HISTORY]),
        stores={name: found[name] for name in STORES},
        locks={alias: one for alias, one in backends.items() if alias not in IN_MEMORY},
        rows=_rows(_held(backends), row, sales),
        unknown=[
            alias
            for alias, probed in backends.items()
            if alias != "none" and not (probed.ok and locks[alias].capabilities.lists_holders)
        ],
        open_sales=sum(sale.is_listed and sale.product.is_listed for sale in selling),
        queued_sales=len(queued),
        oldest_reservation=oldest,
        last_job_at=done.order_by("-scheduled_for").values_list("ended_at", flat=True).first(),
        audit=alerts.last_audit(),
        minute=minute,
    )


def _held(backends: Mapping[str, ProbeResult]) -> list[tuple[str, Held]]:
    """Return backend and lock of every held lock that the probes found."""
    return [
        (alias, one)
        for alias, probed in backends.items()
        if probed.ok
        for one in probed.value
        if not one.name.startswith(OWN_LOCKS)
    ]


def _probe_backend(alias: str) -> list[Held]:
    """Probe a backend and return its held locks."""
    locks[alias].probe()
    return locks[alias].inspect()


def _rows(
    held: Sequence[tuple[str, Held]], row: LockPolicy, sales: Sequence[Sale]
) -> list[LockRow]:
    """Return the held locks, stale and contended ones first."""
    guarded = {
        lock_name(sale.pk): (sale.slug, (sale.stock.fence_epoch, sale.stock.fence_token))
        for sale in sales
    }
    rows = []
    for alias, one in held:
        slug, fence = guarded.get(one.name, ("", (0, 0)))
        if alias in (row.backend, row.next_backend):
            epoch, has_token = row.epoch if slug else None, locks[alias].capabilities.fencing
            stale = has_token and one.token is not None and (row.epoch, one.token) < fence
        else:
            epoch, stale = None, not one.name.startswith(RESERVED)
        rows.append(LockRow(backend=alias, held=one, epoch=epoch, sale=slug, is_stale=stale))
    return sorted(rows, key=lambda one: (not one.is_stale, -(one.held.waiters or 0), one.held.name))
