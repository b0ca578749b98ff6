"""Record what each process of an experiment does, as lines that the checker and the timeline read.

    recorder = Recorder(folder, "buyer 3")          # after fork; one file per process
    recorder.watch(locks["redis"])                  # acquire, release, renew, lost
    recorder.watch_purchases()                      # read and write of the stock row
    with recorder.operation("buy", user=7, key="k", quantity=1) as result:
        placed = place_order(...)
        result |= {"order": placed.order.number, "replayed": placed.replayed}
    recorder.note("fault", "start", what="kill holder")
    ...
    events = history(folder)                        # merged, in order; dump(sale) is the other half

An event is a dict: `t` (monotonic nanoseconds, one clock for all processes of a machine), `actor`
(a name for each process), `do`, `type` and the fields of its kind. An operation consists of an
`invoke` and then, with the same `id` and actor, an `ok`, `fail` (nothing was changed) or `unknown`;
the last two have an `error`. A killed process leaves an operation without an end:

    acquire      operation   name, owner, backend; token, deadline (ns, None: no end), epoch
    renew        operation   name, owner; deadline
    release      operation   name, owner
    lost         instant     name, owner
    read         instant     epoch, token, quantity; thread
    write        instant     ok or fail; thread, and the quantity that an ok left on the row
    buy          operation   user, key, quantity; order, replayed
    pay, cancel  operation   order
    step         instant     lane, what, value, code: a step of a flash sale, for the timeline
    fault        start, end  what, lane; target: the actor that it killed, if any
    count        instant     sold, stock: the units in the end
"""

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from inventory.exceptions import OutOfStock, StaleFence
from inventory.models import StockMovement
from locking import policy
from locking.backends.base import Backend
from locking.claims import Claim, Grant
from locking.exceptions import LockError, LockLost
from locking.failpoints import add_observer, remove_observer
from locking.lease import Lease, Lock, LockStore
from shop.administration.audit import StockAudit, audit_sale
from shop.errors import Overloaded, ShopError
from shop.models import Order, Sale

Event = dict[str, Any]
SECOND = 1_000_000_000


def nanoseconds(deadline: float) -> int | None:
    """Return the monotonic time of a deadline, None if there is none."""
    return None if math.isinf(deadline) else round(deadline * 1e9)


def outcome_of(error: BaseException) -> str:
    """Return "fail" if the error guarantees that nothing was changed, else "unknown"."""
    is_refusal = isinstance(error, ShopError) and not isinstance(error, Overloaded)
    refused = (OutOfStock, StaleFence, LockLost)
    return "fail" if is_refusal or isinstance(error, refused) else "unknown"


class Recorder:
    """Append this process's events to a file of its own; thread-safe.

    Each line is one write, so that a crash loses nothing. An event costs 10 microseconds.
    """

    _follows_policy = False
    """True if the grants of this process have an epoch, that of the policy which asked for them."""

    def __init__(self, folder: Path, actor: str = "") -> None:
        self.actor = actor or f"process {os.getpid()}"
        self.folder = folder
        self._ids = itertools.count(1)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(folder / f"{os.getpid()}-{time.monotonic_ns()}.jsonl", flags, 0o644)

    def note(self, do: str, type: str = "", **fields: Any) -> None:
        """Record an event that happens now."""
        head = {"t": time.monotonic_ns(), "actor": self.actor, "do": do}
        if type:
            head["type"] = type
        if self._file >= 0:  # a watchdog may still renew after the recorder was closed
            os.write(self._file, json.dumps(head | fields).encode() + b"\n")

    @contextmanager
    def operation(self, do: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Record an operation; the fields that the block adds to the dictionary go to its end.

        These may override its "type"; an error makes it fail or unknown (see `outcome_of`).
        """
        id = next(self._ids)
        self.note(do, "invoke", id=id, **fields)
        result: dict[str, Any] = {}
        try:
            yield result
        except BaseException as error:
            name = type(error).__name__
            self.note(do, outcome_of(error), id=id, error=name, **fields)
            raise
        self.note(do, result.pop("type", "ok"), id=id, **(fields | result))

    def watch(self, store: LockStore) -> None:
        """Record the requests to this store, their results and losses from now on."""
        lock: Callable[..., Lock] = store.lock

        def locked(
            name: str, *, on_lost: Callable[[Lease], object] | None = None, **options: Any
        ) -> Lock:
            def lost(lease: Lease) -> None:
                self.note("lost", name=lease.name, owner=lease.owner)
                if on_lost is not None:
                    on_lost(lease)

            return lock(name, on_lost=lost, **options)

        self.watch_backend(store.backend)
        vars(store).update(lock=locked)

    def watch_backend(self, backend: Backend) -> None:
        """Record the requests to this backend and their results from now on."""
        acquire, release, extend = backend.acquire, backend.release, backend.extend

        def acquired(claim: Claim, timeout: float) -> Grant | None:
            asked = {"name": claim.name, "owner": claim.owner, "backend": backend.alias}
            epoch = self._epoch()
            with self.operation("acquire", **asked) as result:
                grant = acquire(claim, timeout)
                if grant is None:
                    result["type"] = "fail"
                else:
                    result |= {"token": grant.token, "deadline": nanoseconds(grant.deadline)}
                    result |= epoch
            return grant

        def released(claim: Claim, token: int) -> None:
            with self.operation("release", name=claim.name, owner=claim.owner):
                release(claim, token)

        def extended(claim: Claim, token: int, ttl: float) -> float:
            with self.operation("renew", name=claim.name, owner=claim.owner) as result:
                deadline = extend(claim, token, ttl)
                result["deadline"] = nanoseconds(deadline)
            return deadline

        vars(backend).update(acquire=acquired, release=released, extend=extended)

    def watch_purchases(self) -> None:
        """Record what this process's purchases read from the stock row and write to it.

        Its grants then have the epoch of the lock policy, which orders them before they read.
        """
        self._follows_policy = True
        add_observer(self._observe)

    def _epoch(self) -> dict[str, int]:
        """Return the epoch with which this process asks for a lock now; nothing if unknown."""
        if self._follows_policy:
            with suppress(LockError):
                return {"epoch": policy.current(math.inf).epoch}
        return {}

    def _observe(self, name: str, facts: Mapping[str, Any]) -> None:
        thread = threading.get_ident()
        match name:
            case "stock.read":
                reading = facts["reading"]
                fence = {"epoch": reading.fence.epoch, "token": reading.fence.token}
                self.note("read", "ok", **fence, quantity=reading.quantity, thread=thread)
            case "stock.committed":
                left = facts["reading"].quantity
                if left is not None:
                    left -= sum(quantity for _number, quantity in facts["orders"])
                self.note("write", "ok", quantity=left, thread=thread)
            case "stock.refused":
                error = type(facts["error"]).__name__
                self.note("write", "fail", error=error, thread=thread)

    def close(self) -> None:
        """Stop observing, and close the file."""
        remove_observer(self._observe)
        file, self._file = self._file, -1
        os.close(file)


def history(folder: Path) -> list[Event]:
    """Return the events of all processes, in order of time."""
    events: list[Event] = []
    for file in folder.glob("*.jsonl"):
        with file.open() as lines:
            for line in lines:
                # The last line of a killed process may be incomplete.
                with suppress(json.JSONDecodeError):
                    events.append(json.loads(line))
    events.sort(key=lambda event: int(event["t"]))
    return events


class OrderRow(NamedTuple):
    """An order as the database stores it; `key` is a digest."""

    number: str
    customer: int
    key: str
    quantity: int
    status: str


class Dump(NamedTuple):
    """The rows of one sale after a run."""

    audit: StockAudit
    limit: int
    orders: list[OrderRow]
    fences: list[tuple[int, int]]
    """Epoch and token of each line of the ledger."""


def dump(sale: Sale) -> Dump:
    """Return the rows of a sale."""
    orders = Order.objects.filter(sale=sale).order_by("pk")
    moved = StockMovement.objects.filter(stock_id=sale.stock_id).order_by("pk")
    rows = orders.values_list("number", "customer_id", "key", "quantity", "status")
    fences = list(moved.values_list("fence_epoch", "fence_token"))
    return Dump(
        audit_sale(sale=sale), sale.limit_per_customer, [*map(OrderRow._make, rows)], fences
    )
