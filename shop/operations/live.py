"""Lock policy, stores and held locks, at most a second old while the stores respond.

One process at a time reads them. While it waits for a store, the other viewers get the previous
state and its age.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from kazoo.hosts import collect_hosts

from locking import locks, policy, single_flight
from locking.backends.base import Held
from locking.models import LockPolicy, LockPolicyChange
from shop.models import Sale
from shop.operations.probes import STORES, Probe, ProbeResult, ping, probe_all
from shop.operations.rates import Traffic, read_traffic
from shop.sales.stock_lock import lock_name

TTL = 0.9
STALE = 10.0
"""Seconds after TTL for which the previous state is shown during a read."""
PROBE_SECONDS = 1.5
"""A store that takes longer counts as down."""
HISTORY = 10
IN_MEMORY = ("none", "process")
"""Backends without a store."""
OWN_LOCKS = "build:ops:"
"""Prefix of the locks that reading this state acquires."""


class StoreHealth(NamedTuple):
    """The result of probing a store."""

    name: str
    is_lock: bool
    """True for a lock backend, False for the shop's database, Redis and cache."""
    probed: ProbeResult
    nodes: str = ""
    """Responding nodes and all nodes, e.g. "4/5"; empty for a store with one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRow:
    """A held lock, or the free lock of an open sale."""

    backend: str
    """Empty for a free lock."""
    held: Held
    """For a free lock, its name and the token on the stock row."""
    epoch: int | None
    """The epoch of the token; None if the lock is not in the active backend."""
    sale: str
    """The slug of the sale that the lock guards; empty for other locks."""
    is_stale: bool = False
    """The lock belongs to an older policy or its token is older than the stock row's fence, so
    writes under it are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The lock policy, the stores and the locks at `as_of`."""

    as_of: datetime
    policy: LockPolicy
    history: list[LockPolicyChange]
    stores: list[StoreHealth]
    rows: list[LockRow]
    unknown: list[str]
    """Backends that cannot list the holders of other processes, or did not respond."""
    traffic: list[Traffic]
    span: float | None
    """Seconds that `traffic` covers; None until a second sample exists."""

    @property
    def holders(self) -> int:
        """The number of holders that a drain waits for."""
        active = [row for row in self.rows if row.backend == self.policy.backend]
        return sum(not row.held.name.startswith(policy.DRAIN_EXEMPT) for row in active)

    @property
    def drain_left(self) -> float:
        """Seconds from `as_of` to the latest end of the current switch."""
        return max(0.0, (policy.latest_end(self.policy) - self.as_of).total_seconds())

    @property
    def drain_share(self) -> float:
        """The share of the longest possible drain that has passed, from 0 to 1."""
        longest = (policy.latest_end(self.policy) - self.policy.changed_at).total_seconds()
        return 1 - self.drain_left / longest

    @property
    def was_cancelled(self) -> bool:
        """True if the last requested switch was cancelled."""
        last = self.history[0].changed_at if self.history else None
        requested = bool(self.policy.reason or self.policy.changed_by)
        is_steady = self.policy.state == LockPolicy.State.STEADY
        return requested and is_steady and (last is None or self.policy.changed_at > last)


def get_live_state() -> LiveState:
    """Return the state, read at most a second ago."""
    return single_flight.get_or_build("ops:live", _read_live, ttl=TTL, stale=STALE)


def invalidate() -> None:
    """Make the next viewer read the live state and the statistics again."""
    single_flight.invalidate("ops")


def _read_live() -> LiveState:
    policy.current()  # creates the row if there is none
    row = LockPolicy.objects.get(pk=1)
    if row.next_backend:
        policy.finish_overdue_switch()
        row.refresh_from_db()
    as_of, nodes = timezone.now(), _nodes()
    probes: dict[str, Probe] = {f"lock {alias}": partial(_probe_backend, alias) for alias in locks}
    probes |= {f"node {address}": probe for _, address, probe in nodes}
    found = probe_all(STORES | probes, seconds=PROBE_SECONDS)
    backends = {alias: found[f"lock {alias}"] for alias in locks}
    stores = [StoreHealth(name, False, found[name]) for name in STORES]
    for alias, probed in backends.items():
        if alias not in IN_MEMORY:
            up = [found[f"node {address}"].ok for of, address, _ in nodes if of == alias]
            stores.append(StoreHealth(alias, True, probed, f"{sum(up)}/{len(up)}" if up else ""))
    traffic, span = read_traffic()
    return LiveState(
        as_of=as_of,
        policy=row,
        history=list(LockPolicyChange.objects.all()[:HISTORY]),
        stores=stores,
        rows=_rows(_held(backends), row),
        unknown=[
            alias
            for alias, probed in backends.items()
            if not (probed.ok and locks[alias].capabilities.lists_holders)
        ],
        traffic=traffic,
        span=span,
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


def _nodes() -> list[tuple[str, str, Probe]]:
    """Return backend, address and probe of each server of RedLock and ZooKeeper."""
    redlock: list[tuple[str, str, Probe]] = [
        ("redlock", urlsplit(url).netloc.rpartition("@")[2], partial(ping, url))
        for url in settings.REDLOCK_URLS
    ]
    hosts = collect_hosts(settings.ZOOKEEPER_HOSTS)[0] if settings.ZOOKEEPER_HOSTS else []
    return redlock + [
        ("zookeeper", f"{host}:{port}", partial(_probe_zookeeper, host, port))
        for host, port in hosts
    ]


def _probe_zookeeper(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=PROBE_SECONDS) as connection:
        connection.settimeout(PROBE_SECONDS)
        connection.sendall(b"srvr")
        reply = connection.recv(200)
    if not reply or b"not currently serving" in reply:
        raise ConnectionError(reply)


def _rows(held: Sequence[tuple[str, Held]], row: LockPolicy) -> list[LockRow]:
    """Return the held locks and the free locks of open sales, stale and contended ones first."""
    taken, now = {one.name for _, one in held}, timezone.now()
    ids = [name.removeprefix("sale:") for name in taken if re.fullmatch("sale:[0-9]{1,18}", name)]
    shown = Q(pk__in=ids) | Q(opens_at__lte=now, closes_at__gt=now)
    guarded = {
        lock_name(sale.pk): (sale.slug, (sale.stock.fence_epoch, sale.stock.fence_token))
        for sale in Sale.objects.filter(shown).select_related("stock")
    }
    rows = []
    for alias, one in held:
        slug, fence = guarded.get(one.name, ("", (0, 0)))
        if alias == row.backend:
            epoch, has_token = row.epoch, locks[alias].capabilities.fencing
            stale = has_token and one.token is not None and (epoch, one.token) < fence
        else:
            epoch, stale = None, not one.name.startswith(policy.DRAIN_EXEMPT)
        rows.append(LockRow(backend=alias, held=one, epoch=epoch, sale=slug, is_stale=stale))
    rows.sort(key=lambda one: (not one.is_stale, -(one.held.waiters or 0), one.held.name))
    return rows + [
        LockRow(backend="", held=Held(name=name, owner="", token=token), epoch=epoch, sale=slug)
        for name, (slug, (epoch, token)) in guarded.items()
        if name not in taken
    ]
