"""The guard, the stores and the locks, at most a second old where the stores answer.

However many look, one reads; while it waits for a store that hangs, the others are shown what is
older, with its age.
"""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from kazoo.hosts import collect_hosts

from locking import locks, policy, single_flight
from locking.backends.base import Held
from locking.models import LockPolicy, LockPolicyChange
from shop.models import Sale
from shop.operations import probes as probing
from shop.operations.probes import Probed
from shop.operations.rates import Traffic, read_traffic
from shop.purchase.place_order import lock_name

TTL = 0.9
STALE = 10.0
PROBE_SECONDS = 1.5
"""A store that takes longer counts as down."""
HISTORY = 10
IN_MEMORY = ("none", "process")
"""Backends without a store."""
OUR_OWN = "build:ops:"
"""Names of the locks under which this module reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A service and how it does."""

    name: str
    is_lock: bool
    """A lock backend; else what the shop itself needs."""
    ok: bool
    ms: float | None
    error: str
    nodes: str = ""
    """How many of its nodes answer, e.g. "4/5"; empty where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One lock that is held, or that of an open sale."""

    backend: str
    """Empty for a lock that is free."""
    held: Held
    """For a lock that is free, its name and the newest token that wrote the stock row."""
    epoch: int | None
    """Of its token; None where the grant is not one of the policy in force."""
    sale: str
    """The slug of the sale that it guards; empty for other locks."""
    is_free: bool = False
    is_stale: bool = False
    """Held under an older policy, or older than the fence on the stock row: its writes, if any,
    are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The guard and its locks at `as_of`."""

    as_of: datetime
    policy: LockPolicy
    history: list[LockPolicyChange]
    stores: list[Store]
    rows: list[Row]
    unknown: list[str]
    """Backends that cannot list the holders of other processes, or did not answer."""
    traffic: list[Traffic]
    span: float | None
    """Seconds that `traffic` is about; None before the second look."""

    @property
    def holders(self) -> int:
        """Holders for whom a drain waits."""
        mine = [row for row in self.rows if row.backend == self.policy.backend]
        return sum(not row.held.name.startswith(policy.NOT_WAITED_FOR) for row in mine)

    @property
    def drain_left(self) -> float:
        """Seconds until the switch under way is over at the latest, counted from `as_of`."""
        return max(0.0, (policy.ends_by(self.policy) - self.as_of).total_seconds())

    @property
    def drain_share(self) -> float:
        """How much of the longest drain is over, from 0 to 1."""
        longest = (policy.ends_by(self.policy) - self.policy.changed_at).total_seconds()
        return 1 - self.drain_left / longest

    @property
    def was_cancelled(self) -> bool:
        """Whether the last switch that was asked for did not take place."""
        last = self.history[0].changed_at if self.history else None
        asked = bool(self.policy.reason or self.policy.changed_by)
        is_steady = self.policy.state == LockPolicy.State.STEADY
        return asked and is_steady and (last is None or self.policy.changed_at > last)


def see_live() -> Live:
    """As anybody saw it at most a second ago."""
    return single_flight.get_or_build("ops:live", _read_live, ttl=TTL, stale=STALE)


def forget() -> None:
    """After somebody did something, everybody sees it at once."""
    single_flight.invalidate("ops")


def _read_live() -> Live:
    policy.current()  # makes the row at the first look
    row = LockPolicy.objects.get(pk=1)
    if row.next_backend:
        policy.finish_overdue_switch()
        row.refresh_from_db()
    as_of = timezone.now()
    probes: dict[str, Callable[[], Any]] = {"database": probing.database, "cache": probing.cache}
    probes |= {f"lock {alias}": partial(_look, alias) for alias in locks}
    nodes = _nodes()
    probes |= {f"node {address}": probe for _, address, probe in nodes}
    found = probing.probe_all(probes, seconds=PROBE_SECONDS)
    up: dict[str, list[bool]] = {}
    for alias, address, _ in nodes:
        up.setdefault(alias, []).append(found[f"node {address}"].ok)
    stores = [_store(name, found[name]) for name in ("database", "cache")] + [
        _store(alias, found[f"lock {alias}"], up.get(alias), is_lock=True)
        for alias in locks
        if alias not in IN_MEMORY
    ]
    looks = {alias: found[f"lock {alias}"] for alias in locks}
    held = [
        (alias, one)
        for alias, look in looks.items()
        if look.ok
        for one in look.value[1]
        if not one.name.startswith(OUR_OWN)
    ]
    traffic, span = read_traffic()
    return Live(
        as_of=as_of,
        policy=row,
        history=list(LockPolicyChange.objects.all()[:HISTORY]),
        stores=stores,
        rows=_rows(held, row),
        unknown=[
            alias
            for alias, look in looks.items()
            if not (look.ok and locks[alias].capabilities.lists_holders)
        ],
        traffic=traffic,
        span=span,
    )


def _store(
    name: str, probed: Probed, nodes: list[bool] | None = None, *, is_lock: bool = False
) -> Store:
    return Store(
        name=name,
        is_lock=is_lock,
        ok=probed.ok,
        ms=probed.value[0] if probed.ok and is_lock else probed.ms,
        error=probed.error,
        nodes=f"{sum(nodes)}/{len(nodes)}" if nodes else "",
    )


def _look(alias: str) -> tuple[float, list[Held]]:
    """The milliseconds of a probe, and who holds a lock."""
    begun = time.monotonic()
    locks[alias].probe()
    ms = round((time.monotonic() - begun) * 1000, 1)
    return ms, locks[alias].inspect()


def _nodes() -> list[tuple[str, str, Callable[[], Any]]]:
    """Backend, address and probe of every server of those that have several."""
    redlock: list[tuple[str, str, Callable[[], Any]]] = [
        ("redlock", urlsplit(url).netloc.rpartition("@")[2], partial(probing.ping, url))
        for url in settings.REDLOCK_URLS
    ]
    hosts = collect_hosts(settings.ZOOKEEPER_HOSTS)[0] if settings.ZOOKEEPER_HOSTS else []
    return redlock + [
        ("zookeeper", f"{host}:{port}", partial(_ask_zookeeper, host, port)) for host, port in hosts
    ]


def _ask_zookeeper(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=PROBE_SECONDS) as wire:
        wire.settimeout(PROBE_SECONDS)
        wire.sendall(b"srvr")
        said = wire.recv(200)
    if not said or b"not currently serving" in said:
        raise ConnectionError(said)


def _rows(held: Sequence[tuple[str, Held]], row: LockPolicy) -> list[Row]:
    """Who holds a lock; and the open sales whose lock is free, since it is held for moments."""
    ids = {_sale_id(one.name) for _, one in held} - {None}
    now = timezone.now()
    shown = Q(pk__in=ids) | Q(opens_at__lte=now, closes_at__gt=now)
    guarded = {
        lock_name(sale.pk): (sale.slug, (sale.stock.fence_epoch, sale.stock.fence_token))
        for sale in Sale.objects.filter(shown).select_related("stock")
    }
    rows = []
    for alias, one in held:
        is_ours = alias == row.backend
        slug, fence = guarded.get(one.name, ("", (0, 0)))
        counts = locks[alias].capabilities.fencing and one.token is not None
        stale = is_ours and counts and (row.epoch, one.token) < fence
        stale = stale or (not is_ours and not one.name.startswith(policy.NOT_WAITED_FOR))
        epoch = row.epoch if is_ours else None
        rows.append(Row(backend=alias, held=one, epoch=epoch, sale=slug, is_stale=stale))
    rows.sort(key=lambda one: (not one.is_stale, -(one.held.waiters or 0), one.held.name))
    taken = {one.name for _, one in held}
    for name, (slug, (epoch, token)) in guarded.items():
        if name in taken:
            continue
        free = Held(name=name, owner="", token=token)
        rows.append(Row(backend="", held=free, epoch=epoch, sale=slug, is_free=True))
    return rows


def _sale_id(name: str) -> int | None:
    kind, _, number = name.partition(":")
    return int(number) if kind == "sale" and number.isdecimal() and number.isascii() else None
