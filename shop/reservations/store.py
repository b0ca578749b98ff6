"""A queued sale's state in Redis: the only module that knows its keys.

    queued:{<sale>}:<generation>            hash    left: pieces that may be reserved
                                                    run: the server that was last compared
    queued:{<sale>}:<generation>:taken      hash    customer -> pieces reserved and ordered
    queued:{<sale>}:<generation>:tickets    hash    number -> "<quantity> <what became of it>"
    queued:{<sale>}:<generation>:orders     stream  reservations that are to be written

The generation is a random number in the sale's row, another one after every load: what an old
server or another database's shop left there never mixes with what was loaded since.

Errors: ServiceUnavailable, in bounded time, when Redis is silent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings

from locking import LockUnavailable
from locking.backends.redis.connection import Connection, Script
from locking.backends.redis.pool import ConnectionPool
from shop.errors import ServiceUnavailable
from shop.models import Sale

TIMEOUT = 1.0
"""Seconds for which a silent Redis is waited for."""
GROUP = "orders"
CHUNK = 1000
EMPTY = "-"
"""A field that is always there, so that a hash can be given its expiry when it is loaded."""

Keys = tuple[str, str, str, str]
Item = TypeVar("Item")

_RESERVE, _SETTLE, _GIVE_BACK, _RECOUNT = (
    Script(str(Path(__file__).parent / "lua" / f"{name}.lua"))
    for name in ("reserve", "settle", "give_back", "recount")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A reservation in the stream; customer_id is None when it cannot be read."""

    id: str
    number: str
    customer_id: int | None
    quantity: int
    key: str
    content: str = ""

    @property
    def reserved_at(self) -> float:
        """When, in seconds since 1970 by Redis's clock."""
        return int(self.id.partition("-")[0]) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """What `recount` found and put right."""

    left_before: int
    left: int
    customers: int = 0
    tickets: int = 0


def keys_of(sale_id: int, generation: int) -> Keys:
    """The four keys of a sale's state."""
    state = f"queued:{{{sale_id}}}:{generation}"
    return state, f"{state}:taken", f"{state}:tickets", f"{state}:orders"


@cache
def _pool(url: str) -> ConnectionPool:
    return ConnectionPool(url, timeout=TIMEOUT, connect_timeout=TIMEOUT)


def open_wire() -> Connection:
    """A connection of one's own, for who waits on it."""
    try:
        return _pool(settings.REDIS_URL).open()
    except LockUnavailable as error:
        raise ServiceUnavailable from error


def _ask(request: Callable[[Connection], Any]) -> Any:
    """Send a request that may run twice on a pooled connection; return its reply."""
    try:
        return _pool(settings.REDIS_URL).call(request)
    except LockUnavailable as error:
        raise ServiceUnavailable from error


def _run(script: Script, keys: Sequence[str], *args: object) -> Any:
    texts = list(map(str, args))
    return _ask(lambda wire: wire.run(script, keys, texts))


def _command(*command: object) -> Any:
    texts = list(map(str, command))
    return _ask(lambda wire: wire.command(*texts))


def reserve(
    *, sale: Sale, number: str, customer_id: int, quantity: int, key: str, limit: int
) -> str:
    """One of "queued", "replayed", "key_reused", "limit", "sold_out" and "not_loaded"."""
    keys = keys_of(sale.pk, sale.generation)
    return str(_run(_RESERVE, keys, number, customer_id, quantity, key, limit))


def settle(*, sale: Sale, outcomes: Iterable[tuple[Entry, str]]) -> int:
    """Take decided entries out of the stream; what was not won goes back. How many were there."""
    settled = 0
    for some in in_chunks(outcomes):
        args: list[object] = []
        for entry, outcome in some:
            customer = "" if entry.customer_id is None else entry.customer_id
            args += (entry.id, entry.number, customer, entry.quantity, outcome)
        settled += int(_run(_SETTLE, keys_of(sale.pk, sale.generation), GROUP, *args))
    return settled


def give_back(*, sale: Sale, number: str, customer_id: int, quantity: int) -> None:
    """Return the pieces of an order that was closed; by the holder of the sale's lock."""
    _run(_GIVE_BACK, keys_of(sale.pk, sale.generation)[:3], customer_id, quantity, number)


def outcome_of(*, sale: Sale, number: str) -> str | None:
    """What became of a reservation: "waiting", "won", "returned" when the order
    was closed, why there is none, or None when it is not known."""
    found = _command("HGET", keys_of(sale.pk, sale.generation)[2], number)
    return None if found is None else str(found).partition(" ")[2]


def left(*, sale: Sale) -> int | None:
    """Pieces that may be reserved; None when the sale is not loaded."""
    found = _command("HGET", keys_of(sale.pk, sale.generation)[0], "left")
    return None if found is None else int(found)


def backlog(*, sale: Sale) -> int:
    """Reservations whose order is not written yet."""
    return int(_command("XLEN", keys_of(sale.pk, sale.generation)[3]))


def was_compared(*, sale: Sale) -> bool:
    """Whether everything was compared since this Redis server started."""
    state = keys_of(sale.pk, sale.generation)[0]
    return bool(_command("HGET", state, "run") == _run_id())


def load(
    *,
    sale: Sale,
    quantity: int,
    taken: dict[int, int],
    decided: dict[str, tuple[int, str]],
    expires_at: float,
) -> None:
    """Write a new generation; nobody uses it before its last command."""
    state, taken_key, tickets, orders = keys_of(sale.pk, sale.generation)
    # Creating the group again is an error, and the generation is new.
    _command("XGROUP", "CREATE", orders, GROUP, "0", "MKSTREAM")
    pairs = {str(customer): str(pieces) for customer, pieces in taken.items()}
    _fill(taken_key, {EMPTY: "0", **pairs})
    _fill(tickets, {EMPTY: "0 won"})
    tell(sale=sale, decided=decided)
    keep(sale=sale, until=expires_at)
    _command("HSET", state, "left", quantity, "run", _run_id())
    keep(sale=sale, until=expires_at)


def keep(*, sale: Sale, until: float) -> None:
    """Let Redis forget all of it at that Unix time, and not before."""
    for key in keys_of(sale.pk, sale.generation):
        _command("PEXPIREAT", key, int(until * 1000))


def tell(*, sale: Sale, decided: dict[str, tuple[int, str]]) -> None:
    """Let the tickets of these numbers say quantity and outcome as the database does."""
    tickets = keys_of(sale.pk, sale.generation)[2]
    _fill(tickets, {number: f"{n} {outcome}" for number, (n, outcome) in decided.items()})


def in_chunks(items: Iterable[Item]) -> Iterable[list[Item]]:
    """The items by the thousand: what one command can carry."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, CHUNK)), [])


def _fill(key: str, fields: dict[str, str]) -> None:
    for some in in_chunks(fields.items()):
        _command("HSET", key, *(text for pair in some for text in pair))


def recount(*, sale: Sale, quantity: int, taken: dict[int, int] | None) -> Recount | None:
    """Put `left` right, and with `taken` customers and tickets too; None when it is gone."""
    pairs = [text for pair in (taken or {}).items() for text in pair]
    found = _run(
        _RECOUNT,
        keys_of(sale.pk, sale.generation),
        quantity,
        int(taken is not None),
        _run_id(),
        EMPTY,
        0,
        *pairs,
    )
    if found is None:
        return None
    return Recount(left_before=found[0], left=found[1], customers=found[2], tickets=found[3])


def entries(*, sale: Sale) -> list[Entry]:
    """Everything that is to be written, oldest first."""
    return read(_command("XRANGE", keys_of(sale.pk, sale.generation)[3], "-", "+"))


def deliveries(*, sale: Sale, entry: Entry) -> int:
    """How often an entry was given to a consumer that did not settle it."""
    stream = keys_of(sale.pk, sale.generation)[3]
    pending = _command("XPENDING", stream, GROUP, entry.id, entry.id, 1)
    return int(pending[0][3]) if pending else 0


def _run_id() -> str:
    lines = str(_command("INFO", "server")).splitlines()
    return next(line for line in lines if line.startswith("run_id:")).removeprefix("run_id:")


def read(raw: Iterable[Any]) -> list[Entry]:
    """Entries as Redis tells them; one that cannot be read keeps its content as text."""
    return [_entry(str(id_), fields) for id_, fields in raw if fields is not None]


def _entry(id_: str, fields: Sequence[str]) -> Entry:
    told = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        return Entry(
            id=id_,
            number=told["n"],
            customer_id=int(told["c"]),
            quantity=int(told["q"]),
            key=told["k"],
        )
    except (KeyError, ValueError):
        number = told.get("n") or f"entry {id_}"
        return Entry(
            id=id_,
            number=number[:32],
            customer_id=None,
            quantity=0,
            key="",
            content=" ".join(fields)[:1000],
        )
