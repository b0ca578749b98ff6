"""The state of queued sales in Redis: the only module that knows its keys.

    queue:{<sale>}:<generation>            hash    stock: the shard's units of the stock row
                                                   queued: units in the stream
                                                   run: id of the server last compared thoroughly
    queue:{<sale>}:<generation>:taken      hash    customer -> units ordered
    queue:{<sale>}:<generation>:outcomes   hash    number of a decided reservation ->
                                                   "<quantity> <outcome>"
    queue:{<sale>}:<generation>:waiting    hash    number of a reservation in the stream -> units;
                                                   customer -> units
    queue:{<sale>}:<generation>:orders     stream  reservations whose order is not written yet

`stock`, `taken` and `outcomes` mirror the database; only a holder of the sale's lock changes them.
`queued`, `waiting` and the stream change together, in one script each time.

Each shard has a state of its own, with its customers and its share of the stock row; `shards` has
the hash tags. The generation is a random number in the sale's row, changed by every load: data that
an old server or the shop of another database left behind never mixes with the current state. A
generation without `stock` is being filled.

All functions raise ServiceUnavailable, in bounded time, if Redis is unavailable.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from django.conf import settings

from shop.errors import ServiceUnavailable
from shop.models import Order, Sale
from shop.platform.redis import Address, command, run, scan_hash, scripts
from shop.reservations.shards import Shard, home_of, shards_of

FILL_TIMEOUT = 15
"""Seconds within which a process fills a generation; then others take it for lost."""
CHUNK = 500
"""Items in one command."""
POLL = 0.03
"""Seconds between two reads of the streams of several servers."""

Item = TypeVar("Item")
Server = TypeVar("Server")

_RESERVE, _SETTLE, _RELEASE, _SET_STOCK, _TAKE = scripts(
    __file__, "reserve", "settle", "release", "set_stock", "take"
)


class Keys(NamedTuple):
    """The keys of one generation of a shard's state."""

    state: str
    taken: str
    outcomes: str
    waiting: str
    orders: str


class State(NamedTuple):
    """The units of a shard as Redis knows them."""

    stock: int | None
    """Units of the stock row; None while a process fills the generation."""
    queued: int
    """Units in the stream."""
    run: str
    """Id of the server that was compared thoroughly."""

    @property
    def left(self) -> int:
        """Return the units that may be reserved; negative if too many are."""
        return (self.stock or 0) - self.queued


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


@lru_cache(maxsize=1000)
def keys_of(shard: Shard) -> Keys:
    """Return the keys of the generation that `shard` names."""
    state = f"queue:{{{shard.tag}}}:{shard.generation}"
    return Keys(state, *(f"{state}:{name}" for name in Keys._fields[1:]))


def reserve(*, shard: Shard, entry: Entry, limit: int | None) -> str:
    """Reserve units; return queued, replayed, key_reused, limit, sold_out or not_loaded.

    Without a limit nothing is checked: this moves an entry of an older generation.
    """
    most = "" if limit is None else limit
    return str(run(_RESERVE, keys_of(shard), *entry[1:], most, at=shard.address))


def settle(*, shard: Shard, outcomes: Iterable[tuple[Entry, str]]) -> int:
    """Remove decided entries from the stream, release rejected units, return the number removed."""
    settled = 0
    for chunk in _in_chunks(outcomes):
        args: list[object] = []
        for entry, outcome in chunk:
            customer = "" if entry.customer_id is None else entry.customer_id
            args += (entry.id, entry.number, customer, entry.quantity, outcome)
        settled += int(run(_SETTLE, keys_of(shard), *args, at=shard.address))
    return settled


def release(*, order: Order) -> None:
    """Release the units of a closed order; call it while holding the sale's lock."""
    shard = home_of(order.sale, order.customer_id)
    args = order.customer_id, order.quantity, order.number
    run(_RELEASE, keys_of(shard)[:3], *args, at=shard.address)


def is_waiting(*, sale: Sale, customer_id: int, number: str) -> bool:
    """Return True if the reservation is in the stream, False also if its shard is lost."""
    shard = home_of(sale, customer_id)
    if shard.generation < 0:
        return False
    return bool(command("HEXISTS", keys_of(shard).waiting, number, at=shard.address))


def read_state(*, shard: Shard) -> State | None:
    """Return the units of a shard; None if the generation is not in Redis."""
    fields = "stock", "queued", "run"
    stock, queued, run = command("HMGET", keys_of(shard).state, *fields, at=shard.address)
    if stock is None and run is None:
        return None
    return State(None if stock is None else int(stock), int(queued or 0), run or "")


def read_states(*, sale: Sale) -> dict[Shard, State | None]:
    """Return the units of each shard that is available. Raise ServiceUnavailable if none is."""
    return _of_available(shards_of(sale), lambda shard: read_state(shard=shard))


def loaded(states: Mapping[Shard, State | None]) -> dict[Shard, State]:
    """Return the units of the shards that are loaded and not being filled."""
    return {shard: one for shard, one in states.items() if one and one.stock is not None}


def _of_available(servers: Iterable[Server], ask: Callable[[Server], Item]) -> dict[Server, Item]:
    """Return the reply of each server that is available. Raise ServiceUnavailable if none is."""
    replies = {}
    failure: ServiceUnavailable | None = None
    for server in servers:
        try:
            replies[server] = ask(server)
        except ServiceUnavailable as error:
            failure = error
    if failure and not replies:
        raise failure
    return replies


def left(*, sale: Sale) -> int | None:
    """Return the units that may be reserved; None unless all shards respond and are loaded."""
    states = loaded(read_states(sale=sale))
    is_all = len(states) == len(shards_of(sale))
    return sum(state.left for state in states.values()) if is_all else None


def backlog(*, sale: Sale) -> int:
    """Return the number of reservations whose order is not written yet."""
    shards = shards_of(sale)
    return sum(int(command("XLEN", keys_of(one).orders, at=one.address)) for one in shards)


def oldest_age(*, sale: Sale) -> float:
    """Return the seconds for which the oldest reservation has waited; 0 if there is none.

    The shards that are unavailable are left out.
    """
    return max(_of_available(shards_of(sale), _oldest_age).values())


def _oldest_age(shard: Shard) -> float:
    raw = command("XRANGE", keys_of(shard).orders, "-", "+", "COUNT", 1, at=shard.address)
    return max(0.0, time.time() - _read(raw)[0].reserved_at) if raw else 0.0


def create(*, shard: Shard) -> None:
    """Create the generation that `shard` names, to be filled within FILL_TIMEOUT."""
    state = keys_of(shard).state
    command("HSET", state, "run", run_id(shard.address), at=shard.address)
    command("EXPIRE", state, FILL_TIMEOUT, at=shard.address)


def delete(shard: Shard, *keys: str) -> None:
    """Delete keys, by default all of the shard; Redis frees their memory in the background."""
    command("UNLINK", *(keys or keys_of(shard)), at=shard.address)


def expire_at(*, shard: Shard, until: float) -> None:
    """Set the Unix time at which Redis deletes the state."""
    for key in keys_of(shard):
        command("PEXPIREAT", key, int(until * 1000), at=shard.address)


def take(*, shard: Shard, units: int) -> int:
    """Take up to `units` that are not reserved out of a shard; return its stock after that.

    Call it while holding the sale's lock. Raises ServiceUnavailable if Redis lost the generation.
    """
    after = run(_TAKE, keys_of(shard)[:1], units, at=shard.address)
    if after is None:
        raise ServiceUnavailable
    return int(after)


def set_stock(*, shard: Shard, quantity: int, is_compared: bool = True) -> None:
    """Set the shard's units of the stock row; record the server as compared thoroughly, or not.

    Reservations are accepted from then on. Raises ServiceUnavailable if Redis lost the generation.
    """
    server = run_id(shard.address) if is_compared else ""
    if run(_SET_STOCK, keys_of(shard)[:1], quantity, server, at=shard.address) is None:
        raise ServiceUnavailable


def mirror(shard: Shard, key: str, rows: dict[str, str]) -> int:
    """Make a hash equal to rows of the database; return how many fields were wrong.

    In chunks, so that no command delays other clients; reservations do not change these hashes.
    """
    found = dict(scan_hash(key, count=CHUNK, at=shard.address))
    wrong = [pair for pair in rows.items() if found.get(pair[0]) != pair[1]]
    surplus = [field for field in found if field not in rows]
    for chunk in _in_chunks(wrong):
        command("HSET", key, *chain.from_iterable(chunk), at=shard.address)
    for names in _in_chunks(surplus):
        command("HDEL", key, *names, at=shard.address)
    return len(wrong) + len(surplus)


def waiting_numbers(*, shard: Shard) -> set[str]:
    """Return the numbers of all reservations that were waiting throughout this call."""
    fields = scan_hash(keys_of(shard).waiting, count=CHUNK, at=shard.address)
    return {field for field, _ in fields if ":" not in field}


def _in_chunks(items: Iterable[Item]) -> Iterable[list[Item]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, CHUNK)), [])


def entries(*, shard: Shard, after: str = "") -> Iterator[Entry]:
    """Yield the entries of the stream, oldest first; only those after an id if one is given."""
    key = keys_of(shard).orders
    while True:
        start = f"({after}" if after else "-"
        raw = command("XRANGE", key, start, "+", "COUNT", CHUNK, at=shard.address)
        if not raw:
            return
        yield from _read(raw)
        after = raw[-1][0]


def wait_for_entries(shards: Sequence[Shard], seconds: float) -> list[Shard]:
    """Return those of the shards that have entries; wait until one has, at most that long.

    The wait must be shorter than `shop.platform.redis.TIMEOUT`. Shards that are unavailable are
    left out, unless all are.
    """
    servers: dict[tuple[str, ...], dict[str, Shard]] = {}
    for shard in shards:
        with suppress(ServiceUnavailable):  # QUEUE_URLS has lost its URL
            servers.setdefault(shard.address.server, {})[keys_of(shard).orders] = shard
    wait = ["BLOCK", round(seconds * 1000)] if len(servers) == 1 else []

    def ask(server: tuple[str, ...]) -> list[Shard]:
        streams = servers[server]
        at = next(iter(streams.values())).address
        read = "XREAD", "COUNT", 1, *wait, "STREAMS", *streams, *["0"] * len(streams)
        return [streams[stream] for stream in command(*read, at=at) or ()]

    until = time.monotonic() + seconds
    while True:
        filled = list(chain.from_iterable(_of_available(servers, ask).values()))
        if filled or time.monotonic() >= until:
            return filled
        time.sleep(POLL)


def memory_ratio() -> float:
    """Return the used part of a server's memory limit, or of the machine's memory without one.

    Of REDIS_URL and the servers of all shards that respond: the greatest.
    """
    every = [Address(settings.REDIS_URL, ""), *(one.address for one in shards_of(Sale(pk=0)))]
    return max(_of_available({one.server: one for one in every}.values(), _memory_ratio).values())


def _memory_ratio(at: Address) -> float:
    info = _info("memory", at)
    limit = int(info["maxmemory"]) or int(info["total_system_memory"])
    return int(info["used_memory"]) / limit


def run_id(at: Address) -> str:
    """Return the id of a Redis server, which changes when it starts."""
    return _info("server", at)["run_id"]


def _info(section: str, at: Address) -> dict[str, str]:
    lines = str(command("INFO", section, at=at)).splitlines()
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
