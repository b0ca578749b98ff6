"""The state of queued sales in Redis: the only module that knows its keys.

    queue:{<sale>}:<generation>            hash    stock: units in the stock row
                                                   queued: units in the stream
                                                   run: id of the server last compared thoroughly
    queue:{<sale>}:<generation>:taken      hash    customer -> units ordered
    queue:{<sale>}:<generation>:outcomes   hash    number of a decided reservation ->
                                                   "<quantity> <outcome>"
    queue:{<sale>}:<generation>:waiting    hash    number of a reservation in the stream -> units,
                                                   and failures to write it; customer -> units
    queue:{<sale>}:<generation>:orders     stream  reservations whose order is not written yet

`stock`, `taken` and `outcomes` mirror the database; only a holder of the sale's lock changes them.
`queued`, `waiting` and the stream change together, in one script each time.

The generation is a random number in the sale's row, changed by every load: data that an old server
or the shop of another database left behind never mixes with the current state. A generation without
`stock` is being filled.

All functions raise ServiceUnavailable, in bounded time, if Redis is unavailable.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from locking.backends.redis.connection import Script
from shop.errors import ServiceUnavailable
from shop.models import Order, Sale
from shop.platform.redis import command, run

FILL_TIMEOUT = 15
"""Seconds within which a process fills a generation; then others take it for lost."""
CHUNK = 500
"""Items in one command."""

Item = TypeVar("Item")

_RESERVE, _SETTLE, _RELEASE, _SET_STOCK = (
    Script(str(Path(__file__).parent / "lua" / f"{name}.lua"))
    for name in ("reserve", "settle", "release", "set_stock")
)


class Keys(NamedTuple):
    """The keys of one generation of a sale's state."""

    state: str
    taken: str
    outcomes: str
    waiting: str
    orders: str


class State(NamedTuple):
    """The units of a sale as Redis knows them."""

    stock: int | None
    """Units in the stock row; None while a process fills the generation."""
    queued: int
    """Units in the stream."""
    run: str
    """Id of the server that was compared thoroughly."""


class Entry(NamedTuple):
    """A reservation in the stream."""

    id: str
    number: str
    customer_id: int | None
    """None if the entry is malformed."""
    quantity: int
    key: str
    """The digest of the idempotency key; the raw fields of a malformed entry."""

    @property
    def reserved_at(self) -> float:
        """Unix time of the reservation, by the clock of Redis."""
        return int(self.id.partition("-")[0]) / 1000


def keys_of(sale: Sale) -> Keys:
    """Return the keys of the generation that `sale` names."""
    state = f"queue:{{{sale.pk}}}:{sale.generation}"
    return Keys(state, *(f"{state}:{name}" for name in Keys._fields[1:]))


def reserve(*, sale: Sale, entry: Entry, limit: int | None) -> str:
    """Reserve units; return queued, replayed, key_reused, limit, sold_out or not_loaded.

    Without a limit nothing is checked: this moves an entry of an older generation.
    """
    most = "" if limit is None else limit
    return str(run(_RESERVE, keys_of(sale), *entry[1:], most))


def settle(*, sale: Sale, outcomes: Iterable[tuple[Entry, str]]) -> int:
    """Remove decided entries from the stream, release rejected units, return the number removed."""
    settled = 0
    for chunk in _in_chunks(outcomes):
        args: list[object] = []
        for entry, outcome in chunk:
            customer = "" if entry.customer_id is None else entry.customer_id
            args += (entry.id, entry.number, customer, entry.quantity, outcome)
        settled += int(run(_SETTLE, keys_of(sale), *args))
    return settled


def release(*, order: Order) -> None:
    """Release the units of a closed order; call it while holding the sale's lock."""
    run(_RELEASE, keys_of(order.sale)[:3], order.customer_id, order.quantity, order.number)


def is_waiting(*, sale: Sale, number: str) -> bool:
    """Return True if the reservation is in the stream."""
    return bool(command("HEXISTS", keys_of(sale).waiting, number))


def read_state(*, sale: Sale) -> State | None:
    """Return the units of the sale; None if the generation is not in Redis."""
    stock, queued, run = command("HMGET", keys_of(sale).state, "stock", "queued", "run")
    if stock is None and run is None:
        return None
    return State(None if stock is None else int(stock), int(queued or 0), run or "")


def left(*, sale: Sale) -> int | None:
    """Return the units that may be reserved; None if the sale is not loaded."""
    state = read_state(sale=sale)
    return None if state is None or state.stock is None else state.stock - state.queued


def backlog(*, sale: Sale) -> int:
    """Return the number of reservations whose order is not written yet."""
    return int(command("XLEN", keys_of(sale).orders))


def oldest_age(*, sale: Sale) -> float:
    """Return the seconds for which the oldest reservation has waited; 0 if there is none."""
    raw = command("XRANGE", keys_of(sale).orders, "-", "+", "COUNT", 1)
    return max(0.0, time.time() - _read(raw)[0].reserved_at) if raw else 0.0


def create(*, sale: Sale) -> None:
    """Create the generation that `sale` names, to be filled within FILL_TIMEOUT."""
    state = keys_of(sale).state
    command("HSET", state, "run", run_id())
    command("EXPIRE", state, FILL_TIMEOUT)


def delete(*keys: str) -> None:
    """Delete keys; Redis frees their memory in the background."""
    command("UNLINK", *keys)


def expire_at(*, sale: Sale, until: float) -> None:
    """Set the Unix time at which Redis deletes the state."""
    for key in keys_of(sale):
        command("PEXPIREAT", key, int(until * 1000))


def set_stock(*, sale: Sale, quantity: int) -> int | None:
    """Set the units of the stock row; return those before, None if the generation was not open.

    Reservations are accepted from then on. Raises ServiceUnavailable if Redis lost the generation.
    """
    before = run(_SET_STOCK, keys_of(sale)[:1], quantity, run_id())
    if before is None:
        raise ServiceUnavailable
    return int(before) if before else None


def mirror(key: str, rows: dict[str, str]) -> int:
    """Make a hash equal to rows of the database; return how many fields were wrong.

    In chunks, so that no command delays other clients; reservations do not change these hashes.
    """
    found = dict(_scan(key))
    wrong = [pair for pair in rows.items() if found.get(pair[0]) != pair[1]]
    surplus = [field for field in found if field not in rows]
    for chunk in _in_chunks(wrong):
        command("HSET", key, *chain.from_iterable(chunk))
    for names in _in_chunks(surplus):
        command("HDEL", key, *names)
    return len(wrong) + len(surplus)


def waiting_numbers(*, sale: Sale) -> set[str]:
    """Return the numbers of all reservations that were waiting throughout this call."""
    return {field for field, _ in _scan(keys_of(sale).waiting) if ":" not in field}


def _scan(key: str) -> Iterator[tuple[str, str]]:
    cursor = "0"
    while True:
        cursor, flat = command("HSCAN", key, cursor, "COUNT", CHUNK)
        yield from zip(flat[::2], flat[1::2], strict=True)
        if cursor == "0":
            return


def _in_chunks(items: Iterable[Item]) -> Iterable[list[Item]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, CHUNK)), [])


def entries(*, sale: Sale, after: str = "") -> Iterator[Entry]:
    """Yield the entries of the stream, oldest first; only those after an id if one is given."""
    while True:
        start = f"({after}" if after else "-"
        raw = command("XRANGE", keys_of(sale).orders, start, "+", "COUNT", CHUNK)
        if not raw:
            return
        yield from _read(raw)
        after = raw[-1][0]


def wait_for_entries(streams: Sequence[str], seconds: float) -> list[str]:
    """Return those of the streams that have entries; wait until one has, at most that long.

    The wait must be shorter than `shop.platform.redis.TIMEOUT`.
    """
    options = "COUNT", 1, "BLOCK", round(seconds * 1000), "STREAMS"
    return list(command("XREAD", *options, *streams, *["0"] * len(streams)) or ())


def count_failure(*, sale: Sale, entry: Entry) -> int:
    """Count a failure that the entry caused; return how many there were."""
    return int(command("HINCRBY", keys_of(sale).waiting, f"failures:{entry.number}", 1))


def memory_ratio() -> float:
    """Return the used part of the server's memory limit, or of the machine's memory without one."""
    info = _info("memory")
    limit = int(info["maxmemory"]) or int(info["total_system_memory"])
    return int(info["used_memory"]) / limit


def run_id() -> str:
    """Return the id of the Redis server, which changes when it starts."""
    return _info("server")["run_id"]


def _info(section: str) -> dict[str, str]:
    lines = str(command("INFO", section)).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _read(raw: Iterable[Any]) -> list[Entry]:
    return [_entry(str(id_), fields) for id_, fields in raw if fields is not None]


def _entry(id_: str, fields: Sequence[str]) -> Entry:
    values = dict(zip(fields[::2], fields[1::2], strict=False))
    number = values.get("n", f"entry {id_}")[:32]
    try:
        return Entry(id_, number, int(values["c"]), int(values["q"]), values["k"])
    except (KeyError, ValueError):
        return Entry(id_, number, None, 0, " ".join(fields)[:1000])
