"""The state of queued sales in Redis: the only module that knows its keys.

    queue:{<sale>}:<generation>            hash    stock: units of the stock row
                                                   queued: units in the stream
                                                   run: id of the server last compared thoroughly
    queue:{<sale>}:<generation>:taken      hash    customer -> units ordered, + BLOCKED
    queue:{<sale>}:<generation>:outcomes   hash    number of a decided reservation ->
                                                   "<quantity> <outcome>"
    queue:{<sale>}:<generation>:waiting    hash    number of a reservation in the stream -> units;
                                                   customer -> units
    queue:{<sale>}:<generation>:orders     stream  reservations whose order is not written yet

`stock`, `taken` and `outcomes` mirror the database; only a holder of the sale's lock changes them.
`queued`, `waiting` and the stream change together, in one script each time.

The hash tag `{<sale>}` keeps a sale in one slot of a Cluster, and spreads the sales over its nodes.
The generation is a random number in the sale's row, changed by every load: data that an old server
or the shop of another database left behind never mixes with the current state. A generation without
`stock` is being filled.

All functions raise ServiceUnavailable, in bounded time, if Redis is unavailable.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from django.conf import settings
from django.utils import timezone

from inventory.exceptions import OutOfStock
from shop.errors import ServiceUnavailable
from shop.models import Order, Sale
from shop.platform.redis import Address, command, run, scan_hash, scripts

CHUNK = 500
"""Items in one command."""
BLOCKED = 1000
"""Units that a customer who may not hold again has in addition; above the limit of any sale."""
KEPT_SECONDS = 2 * 86_400
"""Time after the end of a sale for which its state is kept."""

Item = TypeVar("Item")

_FILL, _RESERVE, _SETTLE, _RELEASE, _SET_STOCK, _TAKE = scripts(
    __file__, "fill", "reserve", "settle", "release", "set_stock", "take"
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

    stock: int
    """Units of the stock row."""
    queued: int
    """Units in the stream."""
    run: str
    """Id of the server that was compared thoroughly."""


class Entry(NamedTuple):
    """A reservation in the stream."""

    id: str
    number: str
    customer_id: int
    quantity: int
    key: str
    """The digest of the idempotency key."""

    @property
    def reserved_at(self) -> float:
        """Unix time of the reservation, by the clock of Redis."""
        return int(self.id.partition("-")[0]) / 1000


def keys_of(sale: Sale) -> Keys:
    """Return the keys of the generation that `sale` names."""
    return _keys(sale.pk, sale.generation)


@lru_cache(maxsize=1000)
def _keys(sale_id: int, generation: int) -> Keys:
    state = f"queue:{{{sale_id}}}:{generation}"
    return Keys(state, *(f"{state}:{name}" for name in Keys._fields[1:]))


def _at(sale: Sale) -> Address:
    return Address(settings.QUEUE_REDIS_URL, str(sale.pk))


def reserve(*, sale: Sale, entry: Entry, limit: int | None) -> str:
    """Reserve units; return queued, replayed, key_reused, limit, sold_out or not_loaded.

    Without a limit nothing is checked: this moves an entry of an older generation. Then
    `not_loaded` means that Redis lost the new one.
    """
    args = *entry[1:], "" if limit is None else limit
    return str(run(_RESERVE, keys_of(sale), *args, at=_at(sale)))


def settle(*, sale: Sale, outcomes: Iterable[tuple[Entry, str]]) -> int:
    """Remove decided entries from the stream, release rejected units, return the number removed."""
    settled = 0
    for chunk in _in_chunks(outcomes):
        args: list[object] = []
        for entry, outcome in chunk:
            args += (*entry[:4], outcome)
        settled += int(run(_SETTLE, keys_of(sale), *args, at=_at(sale)))
    return settled


def release(*, order: Order, is_blocked: bool = False) -> None:
    """Release the units of a closed order; call it while holding the sale's lock.

    If the customer may not hold again in this sale, reservations are refused from then on.
    """
    args = order.customer_id, order.quantity, order.number, BLOCKED if is_blocked else 0
    run(_RELEASE, keys_of(order.sale)[:3], *args, at=_at(order.sale))


def take(*, sale: Sale, units: int) -> None:
    """Take units out of the stock; call it while holding the sale's lock.

    Raise OutOfStock if fewer can be reserved. A reply that is lost may take the units twice: the
    comparison gives them back.
    """
    if not int(run(_TAKE, keys_of(sale)[:1], units, at=_at(sale))):
        raise OutOfStock


def is_waiting(*, sale: Sale, number: str) -> bool:
    """Return True if the reservation is in the stream."""
    return bool(command("HEXISTS", keys_of(sale).waiting, number, at=_at(sale)))


def read_state(*, sale: Sale) -> State | None:
    """Return the units of the sale; None if the generation is not loaded."""
    fields = "stock", "queued", "run"
    stock, queued, run = command("HMGET", keys_of(sale).state, *fields, at=_at(sale))
    return None if stock is None else State(int(stock), int(queued or 0), run or "")


def left(*, sale: Sale) -> int | None:
    """Return the units that may be reserved, negative if too many are; None if not loaded."""
    state = read_state(sale=sale)
    return None if state is None else state.stock - state.queued


def with_left(sale: Sale) -> Sale:
    """Return the sale, if open and queued with the units that may be reserved as `Sale.left`.

    The stock row still has those whose order is not written. While Redis is unavailable, or before
    it has loaded the sale, they are all that is known.
    """
    if sale.is_queued and sale.phase() == Sale.Phase.OPEN:
        with suppress(ServiceUnavailable):
            units = left(sale=sale)
            sale.unreserved = None if units is None else max(0, units)
    return sale


def backlog(*, sale: Sale) -> int:
    """Return the number of reservations whose order is not written yet."""
    return int(command("XLEN", keys_of(sale).orders, at=_at(sale)))


def oldest_age(*, sale: Sale) -> float:
    """Return the seconds for which the oldest reservation has waited; 0 if there is none."""
    raw = command("XRANGE", keys_of(sale).orders, "-", "+", "COUNT", 1, at=_at(sale))
    return max(0.0, time.time() - _read(raw)[0].reserved_at) if raw else 0.0


def create(*, sale: Sale) -> None:
    """Create the generation that `sale` names, to be filled. Each key expires from the start.

    If the process that fills it is killed, no other one knows of it.
    """
    run(_FILL, keys_of(sale)[:1], _expires_at(sale), "run", run_id(sale=sale), at=_at(sale))


def close(*, sale: Sale) -> None:
    """Delete the units of the generation: it accepts no reservation any more."""
    command("UNLINK", keys_of(sale).state, at=_at(sale))


def delete(*, sale: Sale) -> None:
    """Delete the generation; Redis frees its memory in the background."""
    command("UNLINK", *keys_of(sale), at=_at(sale))


def expire(*, sale: Sale) -> None:
    """Set the time at which Redis deletes the state, which staff may have put off."""
    for key in keys_of(sale):
        command("PEXPIREAT", key, _expires_at(sale), at=_at(sale))


def _expires_at(sale: Sale) -> int:
    """Return the Unix time in milliseconds."""
    # Added as numbers: a sale without an end may close on the last day of the calendar.
    ends = max(sale.closes_at, timezone.now()).timestamp()
    return int(1000 * (ends + KEPT_SECONDS))


def set_stock(*, sale: Sale, quantity: int) -> None:
    """Set the units of the stock row, and record that this server was compared thoroughly.

    Reservations are accepted from then on. Raises ServiceUnavailable if Redis lost the generation.
    """
    server = run_id(sale=sale)
    if run(_SET_STOCK, keys_of(sale)[:1], quantity, server, at=_at(sale)) is None:
        raise ServiceUnavailable


def mirror(*, sale: Sale, key: str, rows: dict[str, str]) -> int:
    """Make a hash equal to rows of the database; return how many fields were wrong.

    In chunks, so that no command delays other clients; reservations do not change these hashes.
    """
    found = dict(scan_hash(key, count=CHUNK, at=_at(sale)))
    wrong = [pair for pair in rows.items() if found.get(pair[0]) != pair[1]]
    surplus = [field for field in found if field not in rows]
    for chunk in _in_chunks(wrong):
        run(_FILL, [key], _expires_at(sale), *chain.from_iterable(chunk), at=_at(sale))
    for names in _in_chunks(surplus):
        command("HDEL", key, *names, at=_at(sale))
    return len(wrong) + len(surplus)


def waiting_numbers(*, sale: Sale) -> set[str]:
    """Return the numbers of all reservations that were waiting throughout this call."""
    fields = scan_hash(keys_of(sale).waiting, count=CHUNK, at=_at(sale))
    return {field for field, _ in fields if ":" not in field}


def _in_chunks(items: Iterable[Item]) -> Iterable[list[Item]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, CHUNK)), [])


def entries(*, sale: Sale, after: str = "") -> Iterator[Entry]:
    """Yield the entries of the stream, oldest first; only those after an id if one is given."""
    key = keys_of(sale).orders
    while True:
        start = f"({after}" if after else "-"
        raw = command("XRANGE", key, start, "+", "COUNT", CHUNK, at=_at(sale))
        if not raw:
            return
        yield from _read(raw)
        after = raw[-1][0]


def memory_ratio() -> float:
    """Return the used part of a server's memory limit, or of the machine's memory without one.

    Of REDIS_URL and QUEUE_REDIS_URL, the greater one. Of a Cluster, one node is asked.
    """
    ratios = []
    for url in {settings.REDIS_URL, settings.QUEUE_REDIS_URL}:
        info = _info("memory", Address(url, ""))
        limit = int(info["maxmemory"]) or int(info["total_system_memory"])
        ratios.append(int(info["used_memory"]) / limit)
    return max(ratios)


def run_id(*, sale: Sale) -> str:
    """Return the id of the sale's Redis server, which changes when it starts."""
    return _info("server", _at(sale))["run_id"]


def _info(section: str, at: Address) -> dict[str, str]:
    lines = str(command("INFO", section, at=at)).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _read(raw: Iterable[tuple[str, Sequence[str]]]) -> list[Entry]:
    entries = []
    for id_, flat in raw:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        entries.append(Entry(id_, fields["n"], int(fields["c"]), int(fields["q"]), fields["k"]))
    return entries
