"""The state of queued sales in Redis: the only module that knows its keys.

    queued:{<sale>}:<generation>            hash    left: units that may be reserved
                                                    run: id of the server last compared thoroughly
    queued:{<sale>}:<generation>:taken      hash    customer -> units reserved and ordered
    queued:{<sale>}:<generation>:outcomes   hash    number -> "<quantity> <outcome>"
    queued:{<sale>}:<generation>:orders     stream  reservations whose order is not written yet

The generation is a random number in the sale's row, changed by every load: data that an old server
or the shop of another database left behind never mixes with the current state.

All functions raise ServiceUnavailable, in bounded time, if Redis is unavailable.
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
"""Seconds for which a reply of Redis is awaited."""
GROUP = "orders"
CHUNK = 1000
"""Items in one command."""
EMPTY = "-"
"""A field that is always present, so that an empty hash exists and can have an expiry."""

Keys = tuple[str, str, str, str]
Item = TypeVar("Item")

_RESERVE, _SETTLE, _RELEASE, _REPAIR = (
    Script(str(Path(__file__).parent / "lua" / f"{name}.lua"))
    for name in ("reserve", "settle", "release", "repair")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A reservation in the stream; customer_id is None if the entry is malformed."""

    id: str
    number: str
    customer_id: int | None
    quantity: int
    key: str
    content: str = ""
    """The raw fields of a malformed entry."""

    @property
    def reserved_at(self) -> float:
        """Unix time of the reservation, by the clock of Redis."""
        return int(self.id.partition("-")[0]) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The result of `repair`: units before and after, customers and reservations corrected."""

    left_before: int
    left: int
    customers: int = 0
    reservations: int = 0


def keys_of(sale_id: int, generation: int) -> Keys:
    """Return the keys of a sale's state, of the customers, the outcomes and the stream."""
    state = f"queued:{{{sale_id}}}:{generation}"
    return state, f"{state}:taken", f"{state}:outcomes", f"{state}:orders"


@cache
def _pool(url: str) -> ConnectionPool:
    return ConnectionPool(url, timeout=TIMEOUT, connect_timeout=TIMEOUT)


def open_connection() -> Connection:
    """Return a connection outside of the pool, for a command that waits."""
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
    return _ask(lambda redis: redis.run(script, keys, texts))


def _command(*command: object) -> Any:
    texts = list(map(str, command))
    return _ask(lambda redis: redis.command(*texts))


def reserve(
    *, sale: Sale, number: str, customer_id: int, quantity: int, key: str, limit: int
) -> str:
    """Reserve units; return queued, replayed, key_reused, limit, sold_out or not_loaded."""
    keys = keys_of(sale.pk, sale.generation)
    return str(_run(_RESERVE, keys, number, customer_id, quantity, key, limit))


def settle(*, sale: Sale, outcomes: Iterable[tuple[Entry, str]]) -> int:
    """Remove decided entries from the stream, release rejected units, return the number removed."""
    settled = 0
    for chunk in in_chunks(outcomes):
        args: list[object] = []
        for entry, outcome in chunk:
            customer = "" if entry.customer_id is None else entry.customer_id
            args += (entry.id, entry.number, customer, entry.quantity, outcome)
        settled += int(_run(_SETTLE, keys_of(sale.pk, sale.generation), GROUP, *args))
    return settled


def release(*, sale: Sale, number: str, customer_id: int, quantity: int) -> None:
    """Release the units of a closed order; call it while holding the sale's lock."""
    _run(_RELEASE, keys_of(sale.pk, sale.generation)[:3], customer_id, quantity, number)


def outcome_of(*, sale: Sale, number: str) -> str | None:
    """Return the outcome of a reservation.

    This is "waiting", "won", "returned" after its order was closed, the reason of its rejection, or
    None if it is unknown.
    """
    found = _command("HGET", keys_of(sale.pk, sale.generation)[2], number)
    return None if found is None else str(found).partition(" ")[2]


def left(*, sale: Sale) -> int | None:
    """Return the units that may be reserved; None if the sale is not loaded."""
    found = _command("HGET", keys_of(sale.pk, sale.generation)[0], "left")
    return None if found is None else int(found)


def backlog(*, sale: Sale) -> int:
    """Return the number of reservations whose order is not written yet."""
    return int(_command("XLEN", keys_of(sale.pk, sale.generation)[3]))


def was_compared(*, sale: Sale) -> bool:
    """Return True if everything was compared since this Redis server started."""
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
    """Write a new generation; it is not used before its last command but one."""
    state, taken_key, outcomes, orders = keys_of(sale.pk, sale.generation)
    # Creating the group again is an error, and the generation is new.
    _command("XGROUP", "CREATE", orders, GROUP, "0", "MKSTREAM")
    pairs = {str(customer): str(pieces) for customer, pieces in taken.items()}
    _fill(taken_key, {EMPTY: "0", **pairs})
    _fill(outcomes, {EMPTY: "0 won"})
    write_outcomes(sale=sale, decided=decided)
    expire_at(sale=sale, until=expires_at)
    _command("HSET", state, "left", quantity, "run", _run_id())
    expire_at(sale=sale, until=expires_at)


def expire_at(*, sale: Sale, until: float) -> None:
    """Set the Unix time at which Redis deletes the state."""
    for key in keys_of(sale.pk, sale.generation):
        _command("PEXPIREAT", key, int(until * 1000))


def write_outcomes(*, sale: Sale, decided: dict[str, tuple[int, str]]) -> None:
    """Write quantity and outcome of these numbers, as decided by the database."""
    outcomes = keys_of(sale.pk, sale.generation)[2]
    _fill(outcomes, {number: f"{n} {outcome}" for number, (n, outcome) in decided.items()})


def in_chunks(items: Iterable[Item]) -> Iterable[list[Item]]:
    """Yield the items in lists short enough for one command."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, CHUNK)), [])


def _fill(key: str, fields: dict[str, str]) -> None:
    for chunk in in_chunks(fields.items()):
        _command("HSET", key, *(text for pair in chunk for text in pair))


def repair(*, sale: Sale, quantity: int, taken: dict[int, int] | None) -> Repaired | None:
    """Correct `left`, with `taken` also customers and outcomes; None if the state is lost."""
    pairs = [text for pair in (taken or {}).items() for text in pair]
    found = _run(
        _REPAIR,
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
    return Repaired(left_before=found[0], left=found[1], customers=found[2], reservations=found[3])


def entries(*, sale: Sale, limit: int | None = None) -> list[Entry]:
    """Return the first `limit` entries of the stream, or all, oldest first."""
    count = [] if limit is None else ["COUNT", limit]
    return read(_command("XRANGE", keys_of(sale.pk, sale.generation)[3], "-", "+", *count))


def deliveries(*, sale: Sale, entry: Entry) -> int:
    """Return how many times an entry was delivered to a consumer that did not settle it."""
    stream = keys_of(sale.pk, sale.generation)[3]
    pending = _command("XPENDING", stream, GROUP, entry.id, entry.id, 1)
    return int(pending[0][3]) if pending else 0


def memory_ratio() -> float:
    """Return the used part of the server's memory limit, or of the machine's memory without one."""
    info = _info("memory")
    limit = int(info["maxmemory"]) or int(info["total_system_memory"])
    return int(info["used_memory"]) / limit


def _run_id() -> str:
    return _info("server")["run_id"]


def _info(section: str) -> dict[str, str]:
    lines = str(_command("INFO", section)).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def read(raw: Iterable[Any]) -> list[Entry]:
    """Return the entries of a reply; a malformed one keeps its content as text."""
    return [_entry(str(id_), fields) for id_, fields in raw if fields is not None]


def _entry(id_: str, fields: Sequence[str]) -> Entry:
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        return Entry(
            id=id_,
            number=values["n"],
            customer_id=int(values["c"]),
            quantity=int(values["q"]),
            key=values["k"],
        )
    except (KeyError, ValueError):
        number = values.get("n") or f"entry {id_}"
        return Entry(
            id=id_,
            number=number[:32],
            customer_id=None,
            quantity=0,
            key="",
            content=" ".join(fields)[:1000],
        )
