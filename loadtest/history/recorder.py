"""What every process of an experiment did, as lines that the checker and the timeline read.

    recorder = Recorder(folder, "buyer 3")          # after fork; one file a process
    recorder.watch(locks["redis"])                  # acquire, release, renew, lost
    recorder.watch_shop()                           # read and write of the stock row
    with recorder.attempt("buy", user=7, key="k", quantity=1) as said:
        placed = place_order(...)
        said |= {"order": placed.order.number, "replayed": placed.replayed}
    recorder.note("fault", "start", what="kill holder")
    ...
    events = history(folder)                        # merged, in order; dump(sale) is the other half

An event is a dict: `t` (monotonic nanoseconds, one clock for all processes of a machine), `actor`
(a name for each process), `do`, `type` and what belongs to it. An operation has an `invoke` and
then, under its `id`, an ok, fail (it changed nothing) or unknown, which has an `error` if any:

    acquire      operation   name, owner, backend; token, deadline (ns, None: no end)
    renew        operation   name, owner; deadline
    release      operation   name, owner
    lost         instant     name, owner
    read         operation   epoch, token; quantity
    write        operation
    buy          operation   user, key, quantity; order, replayed
    pay, cancel  operation   order
    fault        start heal  what, lane; victim: the actor that it killed, if any
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from inventory import stock as services
from inventory.exceptions import OutOfStock, StaleFence
from inventory.models import StockMovement
from inventory.queries import ledger_of
from locking.backends.base import Backend, Claim, Grant
from locking.exceptions import LockLost
from locking.lease import Lease, Lock
from shop.errors import Overloaded, ShopError
from shop.models import Order, Sale
from shop.purchase import place_order as checkout

Event = dict[str, Any]


def _ns(deadline: float) -> int | None:
    return None if math.isinf(deadline) else round(deadline * 1e9)


def outcome_of(error: BaseException) -> str:
    """fail where the error promises that nothing was changed, else unknown."""
    is_told = isinstance(error, ShopError) and not isinstance(error, Overloaded)
    refused = (OutOfStock, StaleFence, LockLost)
    return "fail" if is_told or isinstance(error, refused) else "unknown"


class Recorder:
    """Appends this process's events to a file of its own; thread-safe, and safe against SIGKILL.

    A write a line: what was noted before a crash is there afterwards. 10 microseconds an event.
    """

    def __init__(self, folder: Path, actor: str = "") -> None:
        self.actor = actor or f"process {os.getpid()}"
        self._ids = itertools.count(1)
        self._forget_shop: Callable[[], object] = lambda: None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(folder / f"{os.getpid()}-{time.monotonic_ns()}.jsonl", flags, 0o644)

    def note(self, do: str, type: str = "", **fields: Any) -> None:
        """One event, now."""
        head = {"t": time.monotonic_ns(), "actor": self.actor, "do": do}
        if type:
            head["type"] = type
        if self._file >= 0:  # a watchdog may still renew when the story is over
            os.write(self._file, json.dumps(head | fields).encode() + b"\n")

    @contextmanager
    def attempt(self, do: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """An operation: what the block puts into the dictionary is said of its end.

        Its "type" may be overridden there; an error is fail or unknown (see `outcome_of`).
        """
        id = next(self._ids)
        self.note(do, "invoke", id=id, **fields)
        said: dict[str, Any] = {}
        try:
            yield said
        except BaseException as error:
            name = type(error).__name__
            self.note(do, outcome_of(error), id=id, error=name, **fields)
            raise
        self.note(do, said.pop("type", "ok"), id=id, **(fields | said))

    def watch(self, backend: Backend) -> None:
        """Record what this backend is asked, and what it answers, from now on."""
        acquire, release, extend = backend.acquire, backend.release, backend.extend
        lock: Callable[..., Lock] = backend.lock

        def acquired(claim: Claim, timeout: float) -> Grant | None:
            asked = {"name": claim.name, "owner": claim.owner, "backend": backend.alias}
            with self.attempt("acquire", **asked) as said:
                grant = acquire(claim, timeout)
                if grant is None:
                    said["type"] = "fail"
                else:
                    said |= {"token": grant.token, "deadline": _ns(grant.deadline)}
            return grant

        def released(claim: Claim, token: int) -> None:
            with self.attempt("release", name=claim.name, owner=claim.owner):
                release(claim, token)

        def extended(claim: Claim, token: int, ttl: float) -> float:
            with self.attempt("renew", name=claim.name, owner=claim.owner) as said:
                deadline = extend(claim, token, ttl)
                said["deadline"] = _ns(deadline)
            return deadline

        def locked(
            name: str, *, on_lost: Callable[[Lease], object] | None = None, **options: Any
        ) -> Lock:
            def lost(lease: Lease) -> None:
                self.note("lost", name=lease.name, owner=lease.owner)
                if on_lost is not None:
                    on_lost(lease)

            return lock(name, on_lost=lost, **options)

        for name, recorded in (
            ("acquire", acquired),
            ("release", released),
            ("extend", extended),
            ("lock", locked),
        ):
            setattr(backend, name, recorded)

    def watch_shop(self) -> None:
        """Record what this process's purchases read of the stock row and write to it."""
        look = services.read_stock
        commit = checkout.commit  # type: ignore[attr-defined]

        def looked(*, stock_id: int, strategy: str, fence: services.Fence) -> services.StockReading:
            mark = {"epoch": fence.epoch, "token": fence.token}
            with self.attempt("read", **mark) as said:
                seen = look(stock_id=stock_id, strategy=strategy, fence=fence)
                said["quantity"] = seen.quantity
            return seen

        def written(statements: Any) -> list[int]:
            with self.attempt("write"):
                return commit(statements)

        def forget() -> None:
            services.read_stock = look
            checkout.commit = commit  # type: ignore[attr-defined]

        services.read_stock = looked
        checkout.commit = written  # type: ignore[attr-defined]
        self._forget_shop = forget

    def close(self) -> None:
        """Close the file, and leave the shop as it was."""
        self._forget_shop()
        file, self._file = self._file, -1
        os.close(file)


def history(folder: Path) -> list[Event]:
    """The events of all processes, in order of time."""
    keep = sys.intern

    def interned(pairs: list[tuple[str, Any]]) -> Event:
        short = ("actor", "do", "type", "name", "owner", "backend", "error")
        return {key: keep(value) if key in short else value for key, value in pairs}

    events: list[Event] = []
    for file in folder.glob("*.jsonl"):
        with file.open() as lines:
            for line in lines:
                # The last line of a process that was killed may be half a line.
                with suppress(json.JSONDecodeError):
                    events.append(json.loads(line, object_pairs_hook=interned))
    events.sort(key=lambda event: int(event["t"]))
    return events


class OrderRow(NamedTuple):
    """An order as the database keeps it; `key` is the digest."""

    number: str
    customer: int
    key: str
    quantity: int
    status: str


class Movement(NamedTuple):
    """A line of the ledger, in its order."""

    delta: int
    reason: str
    order: str | None
    epoch: int
    token: int


class Dump(NamedTuple):
    """One sale in the database, when everything is over."""

    stocked: int
    available: int
    limit: int
    orders: list[OrderRow]
    movements: list[Movement]


def dump(sale: Sale) -> Dump:
    """Read it."""
    orders = Order.objects.filter(sale=sale).order_by("pk")
    moved = StockMovement.objects.filter(stock_id=sale.stock_id).order_by("pk")
    ledger = ledger_of(stock_id=sale.stock_id)
    columns = ("delta", "reason", "order_number", "fence_epoch", "fence_token")
    return Dump(
        stocked=ledger.stocked,
        available=ledger.available,
        limit=sale.limit_per_customer,
        orders=[
            OrderRow(*row)
            for row in orders.values_list("number", "customer_id", "key", "quantity", "status")
        ],
        movements=[Movement(*row) for row in moved.values_list(*columns)],
    )
