"""The places of waiting rooms in Redis: the only module that knows its keys.

    room:{<sale>}:<generation>         hash    mode, inlet, paused, message, message_zh, reason,
                                               changed: as staff have set them
                                               joined: numbers given
                                               serving: highest position admitted
                                               lapsed: highest position whose turn is over
                                               due: highest position whose time is over
                                               credit, last: what serving is computed from
                                               second, tries, before: tries to buy that may not
                                               be in the stock yet
                                               cutoff: people on the list at the opening
                                               drawn: when the lottery was drawn (Unix time, ms)
                                               sold_out: set once the sale has been sold out
    room:{<sale>}:<generation>:places  hash    customer -> numbers in the order of arrival: one,
                                               and another for each time of joining again
    room:{<sale>}:<generation>:order   string  of a drawn lottery: position of each number
    room:{<sale>}:<generation>:turns   list    second -> serving, while the time of turns runs
    room:{<sale>}:<generation>:tried   bitmap  of positions: 1 after a try to buy in their turn

The generation is in the room's row. A generation that was created and is not in Redis is lost: its
room stays closed until staff reset it, so that no position is given twice.

All functions raise ServiceUnavailable, in bounded time, if Redis is unavailable.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from django.conf import settings

from shop.errors import ServiceUnavailable
from shop.models import Sale
from shop.platform.redis import command, run, scan_hash, scripts
from waiting_room.models import Room

CHUNK = 5000
"""Places read by one command, so that none delays other clients by more than a few ms."""

_VISIT, _CREATE, _DRAW, _TURNS = scripts(__file__, "visit", "create", "draw", "turns")


class Snapshot(NamedTuple):
    """The state of a room, and of the place that was asked for."""

    now: int
    """Time of Redis, in milliseconds, like `drawn`."""
    mode: str
    joined: int
    serving: int
    lapsed: int
    is_full: int
    """1 if all units that are left are the turns of people who have not bought yet."""
    inlet: int
    is_paused: int
    cutoff: int | None
    drawn: int | None
    message: str
    message_zh: str
    reason: str
    changed: int
    """Unix time of the change that `reason` names; 0 if there was none."""
    number: int | None
    """Number of the customer in the order of arrival; None without a place."""
    position: int | None
    """None also until the lottery is drawn."""
    lasts: int | None
    """During the customer's turn: milliseconds for which no one else can get it."""

    @property
    def is_drawing(self) -> bool:
        """True from the opening of a lottery until the order is in force."""
        return self.mode == Room.Mode.LOTTERY and self.cutoff is not None and not self.drawn


def keys_of(room: Room) -> list[str]:
    """Return the keys of the room's generation: state, places, order, turns and tried."""
    state = f"room:{{{room.sale_id}}}:{room.generation}"
    return [state, *(f"{state}:{name}" for name in ("places", "order", "turns", "tried"))]


def create(*, room: Room) -> None:
    """Create the generation of a room if it does not exist."""
    fields = {"mode": room.mode, **_settings(room)}
    run(_CREATE, keys_of(room)[:1], *chain.from_iterable(fields.items()))


def configure(*, room: Room, changed: int | None = None) -> None:
    """Set what staff have changed; `changed` is the Unix time of the change that `reason` names."""
    fields = _settings(room) | ({} if changed is None else {"changed": changed})
    command("HSET", keys_of(room)[0], *chain.from_iterable(fields.items()))


def _settings(room: Room) -> dict[str, object]:
    return {
        "inlet": room.inlet_per_minute,
        "paused": int(room.is_paused),
        "message": room.message,
        "message_zh": room.message_zh,
        "reason": room.reason,
    }


def delete(*, room: Room) -> None:
    """Delete the generation of a room."""
    command("UNLINK", *keys_of(room))


def visit(
    *, room: Room, sale: Sale, customer_id: int | None = None, verb: str = ""
) -> Snapshot | None:
    """Move admission forward and return the state; None if the generation is lost.

    With "join", the customer gets a place unless the sale has ended: once, and again after a turn.
    With "buy", a customer who has the turn is taken to buy a unit.
    """
    times = [round(time.timestamp() * 1000) for time in (sale.opens_at, sale.closes_at)]
    customer = "" if customer_id is None else customer_id
    turn = settings.WAITING_ROOM_TURN_SECONDS
    reply = run(_VISIT, keys_of(room), *times, sale.left, turn, customer, verb)
    return reply and Snapshot(*reply)


def arrivals(*, room: Room, until: int) -> list[int]:
    """Return the customers with the numbers 1 to `until`, in the order of arrival.

    Raise ServiceUnavailable if some are missing, because Redis lost them.
    """
    places = scan_hash(keys_of(room)[1], count=CHUNK)
    found = {int(one): int(customer) for customer, numbers in places for one in numbers.split()}
    try:
        return [found[number] for number in range(1, until + 1)]
    except KeyError:
        raise ServiceUnavailable from None


def having_turn(*, room: Room, of: Sequence[int]) -> list[int]:
    """Return those of the customers who have their turn; admission does not move."""
    chunks = (of[at : at + CHUNK] for at in range(0, len(of), CHUNK))
    return [int(one) for some in chunks for one in run(_TURNS, keys_of(room)[:3], *some)]


def draw(*, room: Room, positions: Iterable[int]) -> bool:
    """Put the positions of the numbers 1, 2, ... in force; return False if some already are."""
    return bool(run(_DRAW, keys_of(room)[:3:2], "".join(f"{one:08x}" for one in positions)))
