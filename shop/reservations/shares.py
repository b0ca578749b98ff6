"""Divide the stock of a queued sale among its shards, and move units to a shard that has none left.

The shares of all shards add up to the stock row. Only a holder of the sale's lock changes them. A
move takes units out of other shards first and then gives them: if the process ends in between, they
are in no shard, and the next comparison gives them again. If the lock has two holders, shares may
exceed the row, as described in `reconciliation`.
"""

from collections.abc import Collection, Mapping
from functools import partial

from django.conf import settings

from locking.failpoints import reach
from shop.errors import Overloaded, ServiceUnavailable, refusing_lock_errors
from shop.models import Sale
from shop.platform.cache import RefreshingCache
from shop.reservations import store
from shop.reservations.shards import Shard, home_of, shards_of
from shop.reservations.store import Entry, State
from shop.sales.stock_lock import sale_lock
from shop.sales.waiting_slots import waiting_slot

FRESH, MAX_AGE = 0.05, 0.1
"""Seconds for which a process refuses customers by what it has read of all shards."""

_left: RefreshingCache[tuple[int, str], tuple[int, bool]] = RefreshingCache()
clear = _left.clear


@refusing_lock_errors()
def reserve_from_others(*, sale: Sale, entry: Entry, limit: int) -> str:
    """Move units to the customer's shard and reserve them; return the outcome of `store.reserve`.

    It is sold_out if all shards together have too few. Raises ServiceUnavailable if a shard that is
    unavailable may have them, and Overloaded if the lock of the sale is not free in time.
    """
    read = partial(_read_left, sale)
    left, is_all = _left.get((sale.pk, sale.generation), read, fresh=FRESH, max_age=MAX_AGE)
    home = home_of(sale, entry.customer_id or 0)
    if left >= entry.quantity:
        with waiting_slot(sale_id=sale.pk), sale_lock(sale):
            for _ in range(settings.MAX_ATTEMPTS):
                left, is_all = _read_left(sale)
                if left >= entry.quantity:
                    _collect(sale, home, entry.quantity)
                outcome = store.reserve(shard=home, entry=entry, limit=limit)
                if outcome != "sold_out":
                    return outcome
                if left < entry.quantity:
                    break
            else:
                raise Overloaded
    if not is_all:
        raise ServiceUnavailable
    return "sold_out"


def _read_left(sale: Sale) -> tuple[int, bool]:
    """Return the units that can be reserved on the available shards, and if those are all."""
    states = _open_states(sale)
    return sum(state.left for state in states.values()), _has_all_loaded(sale, states)


def _open_states(sale: Sale) -> dict[Shard, State]:
    """Return the units of the shards that are available and loaded."""
    return store.loaded(store.read_states(sale=sale))


def _has_all_loaded(sale: Sale, states: Mapping[Shard, object]) -> bool:
    """Return False if a shard that may have a share is missing in `states`."""
    return all(shard in states for shard in shards_of(sale) if shard.generation > 0)


def _collect(sale: Sale, home: Shard, wanted: int) -> None:
    """Move units to the home shard: as many as each other keeps, or `wanted` if that is more."""
    states = _open_states(sale)
    if home not in states:
        return
    gets = states.pop(home)
    left = gets.left + sum(state.left for state in states.values())
    keeps = max(0, min(left // home.total, (left - wanted) // max(1, len(states))))
    taken = 0
    for shard, state in states.items():
        if state.left > keeps:
            after = store.take(shard=shard, units=state.left - keeps)
            taken += (state.stock or 0) - after
    reach("queued.taken")
    store.set_stock(shard=home, quantity=(gets.stock or 0) + taken, is_compared=False)
    reach("queued.given")


def cover(*, sale: Sale, shard: Shard) -> None:
    """Move units to a shard that has reserved more than its share."""
    state = store.read_state(shard=shard)
    if state and state.left < 0 and shard.total > 1:
        _collect(sale, shard, wanted=0)


def first_share(*, sale: Sale, shard: Shard) -> int:
    """Return the units for a shard that is about to open: what no other shard has, divided.

    None while another one is unavailable, whose share is unknown: the shard can get units from the
    others, as any other that has none left.
    """
    found = store.read_states(sale=sale)
    if not _has_all_loaded(sale, found):
        return 0
    others = store.loaded(found)
    return -(min(0, _excess(sale, others)) // max(1, len(found) - len(others)))


def drift(*, sale: Sale, states: Mapping[Shard, State]) -> int:
    """Return the units that the shards have beyond the stock row (+), or that none has (-).

    None is missing as long as the share of an unavailable shard is unknown.
    """
    excess = _excess(sale, states)
    return excess if excess > 0 or _has_all_loaded(sale, states) else 0


def _excess(sale: Sale, states: Mapping[Shard, State]) -> int:
    return sum(state.stock or 0 for state in states.values()) - sale.stock.quantity


def correct(*, sale: Sale, compared: Collection[Shard] = ()) -> int:
    """Make the shares add up to the stock row; return the drift; record what was `compared`."""
    states = _open_states(sale)
    stocks = {shard: state.stock or 0 for shard, state in states.items()}
    excess = drift(sale=sale, states=states)
    rest = -excess
    for shard in sorted(states, key=lambda one: -states[one].left):
        if rest < 0:  # units that are not reserved, as far as there are any
            after = store.take(shard=shard, units=-rest)
            rest += stocks[shard] - after
            stocks[shard] = after
    for number, (shard, units) in enumerate(stocks.items()):
        share = rest // (len(stocks) - number)
        rest -= share
        if share or shard in compared:
            is_compared = shard in compared
            store.set_stock(shard=shard, quantity=units + share, is_compared=is_compared)
    return excess
