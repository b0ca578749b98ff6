"""Waiting rooms: join, ask for a place, read the state and the record of a room, and control it.

Nothing that decides an admission is kept in a process: every place, and the number that is served,
are in Redis. A process remembers only which rooms there are, and the state for the pages.
"""

import logging
import math
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop, pgettext_lazy

from shop.administration.history import entry
from shop.errors import BadInput, NotFound, NotOpen, ServiceUnavailable, ShopError
from shop.models import Sale, User
from shop.platform.cache import RefreshingCache
from shop.purchase.admission import cached_sale
from waiting_room import lottery, store
from waiting_room.models import MAX_INLET, Room, new_generation, new_seed
from waiting_room.store import Snapshot
from waiting_room.tickets import root_of, ticket_of

logger = logging.getLogger("waiting_room")

ROOMS_FRESH, ROOMS_MAX_AGE = 2.0, 10.0
"""Seconds for which a process remembers which sales have a room."""
STATUS_FRESH, STATUS_MAX_AGE = 0.25, 0.5
STATES = {
    "before": pgettext_lazy("waiting room", "before the opening"),
    "shuffling": pgettext_lazy("waiting room", "drawing"),
    "open": pgettext_lazy("waiting room", "open"),
    "paused": pgettext_lazy("waiting room", "paused"),
    "offered": pgettext_lazy("waiting room", "all units offered"),
    "sold_out": pgettext_lazy("waiting room", "sold out"),
    "ended": pgettext_lazy("waiting room", "ended"),
    "unavailable": pgettext_lazy(
        "waiting room", "closed: its store is unavailable or has lost the places"
    ),
}
"""The states of a room, in words for staff."""
KEEP = timedelta(days=7)
"""Time for which the room of a sale that has ended is still shown; store.py keeps it as long."""


class Place(NamedTuple):
    """The place of a customer."""

    ticket: str
    position: int | None
    """From 1; None until the lottery is drawn."""
    admitted: bool
    """True during the customer's turn."""
    is_over: bool
    """True after it: joining again gives a position at the end."""
    lasts: float
    """Seconds for which the turn lasts in any case, and then until someone waits for its unit."""


class RoomStatus(NamedTuple):
    """The state of a room, which everyone may know: sent often, so its names are short."""

    state: str
    """before, shuffling, open, paused, offered, sold_out, ended or unavailable."""
    serving: int
    """Highest position that is or was admitted."""
    lapsed: int
    """Highest position whose turn is over."""
    joined: int
    left: int
    inlet: int
    """People admitted per minute."""
    message: str
    message_zh: str
    reason: str
    """A Room.Reason: the last change by staff that made customers wait longer, or empty."""
    changed: int
    """Unix time of that change; 0 if there was none."""
    poll: int
    """Seconds until the next poll."""
    generation: str
    """Changes with a reset by staff, which drops all places."""

    @property
    def waiting(self) -> int:
        """Return how many people have a place and were not admitted."""
        return max(0, self.joined - self.serving)


_rooms: RefreshingCache[str, dict[int, Room]] = RefreshingCache()
_status: RefreshingCache[int, RoomStatus] = RefreshingCache()
_lost: set[str] = set()
"""Generations whose loss is logged: everyone who waits would repeat the line."""


def room_of(*, sale: Sale) -> Room | None:
    """Return the waiting room of a sale, None if it has none.

    Other processes learn of a new room within ROOMS_FRESH seconds.
    """
    rooms = _rooms.get("all", _read_rooms, fresh=ROOMS_FRESH, max_age=ROOMS_MAX_AGE)
    return rooms.get(sale.pk)


def _read_rooms() -> dict[int, Room]:
    rooms = Room.objects.exclude(mode=Room.Mode.NONE)
    recent = rooms.filter(sale__closes_at__gt=timezone.now() - KEEP).select_related("sale")
    return {room.sale_id: room for room in recent}


def join(*, sale: Sale, customer_id: int) -> Place:
    """Return the customer's place, a new one at the end if there is none, or its turn is over.

    Raise NotFound if the sale has no room, NotOpen after the end of the sale, and
    ServiceUnavailable if nothing is known of the place: joining again is safe.
    """
    place = place_of(sale=sale, customer_id=customer_id, verb="join")
    if place is None:
        raise NotOpen
    return place


def place_of(*, sale: Sale, customer_id: int, verb: str = "") -> Place | None:
    """Return the customer's place, None without one. Raise NotFound or ServiceUnavailable.

    With "buy", the unit of the customer is offered to no one else.
    """
    room = existing_room(sale=sale)
    seen = _visit(room, sale, customer_id=customer_id, verb=verb)
    if seen.number is None:
        return None
    ticket = ticket_of(key=room.ticket_key, customer_id=customer_id)
    is_over = seen.position is not None and seen.position <= seen.lapsed
    lasts = (seen.lasts or 0) / 1000
    return Place(ticket, seen.position, seen.lasts is not None, is_over, lasts)


def status_of(*, sale: Sale) -> RoomStatus:
    """Return the state of the room as it was at most half a second ago. Raise NotFound.

    It comes from the memory of the process, which reads it four times a second while it is asked
    for; that also moves admission forward and, at the opening, draws the lottery. If Redis is
    unavailable, the state is "unavailable".
    """
    room = existing_room(sale=sale)
    read = partial(_read_status, room, sale)
    return _status.get(sale.pk, read, fresh=STATUS_FRESH, max_age=STATUS_MAX_AGE)


def admit() -> None:
    """Move admission forward in all rooms of open sales.

    Every poll does; but those who have closed their pages wait as well.
    """
    now = timezone.now()
    for room in _read_rooms().values():
        if room.sale.opens_at <= now < room.sale.closes_at:
            with suppress(ShopError):  # of this room alone: lost, or its product is hidden
                _visit(room, room.sale)


def _read_status(room: Room, sale: Sale) -> RoomStatus:
    try:
        seen = _visit(room, sale)
    except ServiceUnavailable:
        # Closed: the numbers are unknown, and no one is admitted by this process.
        texts, inlet = (room.message, room.message_zh, room.reason), room.inlet_per_minute
        return RoomStatus("unavailable", 0, 0, 0, 0, inlet, *texts, 0, 2, room.generation)
    sale = cached_sale(slug=sale.slug)
    polls = (seen.joined - seen.serving) / settings.WAITING_ROOM_POLLS_PER_SECOND
    return RoomStatus(
        state=_state(seen, sale),
        left=sale.left,
        poll=max(1, math.ceil(polls)),
        generation=existing_room(sale=sale).generation,
        **{name: getattr(seen, name) for name in seen._fields if name in RoomStatus._fields},
    )


def _state(seen: Snapshot, sale: Sale) -> str:
    now = seen.now / 1000
    if now < sale.opens_at.timestamp():
        return "before"
    if now >= sale.closes_at.timestamp():
        return "ended"
    if seen.is_drawing:
        return "shuffling"
    if sale.left <= 0:
        return "sold_out"
    if seen.is_paused:
        return "paused"
    return "offered" if seen.is_full else "open"


def record_of(*, room: Room) -> dict[str, Any]:
    """Return the public record of a room, from which a visitor can repeat the lottery.

    The list and its root are None before the opening, the seed until the lottery is drawn. Raise
    ServiceUnavailable if Redis is, or has lost the list. Building it costs about a second for
    100,000 people: cache it.
    """
    seen = _visit(room, room.sale)
    room, tickets = existing_room(sale=room.sale), None  # staff may have reset it
    if seen.cutoff is not None:
        customers = store.arrivals(room=room, until=seen.cutoff)
        tickets = sorted(ticket_of(key=room.ticket_key, customer_id=one) for one in customers)
    return {
        "sale": room.sale.slug,
        "mode": seen.mode,
        "commitment": room.commitment,
        "root": None if tickets is None else root_of(tickets),
        "seed": room.seed if seen.drawn else None,
        "list": tickets,
        "late": 0 if seen.cutoff is None else seen.joined - seen.cutoff,
        "earlier": room.earlier or [],
    }


def existing_room(*, sale: Sale) -> Room:
    """Return the waiting room of a sale. Raise NotFound without one."""
    room = room_of(sale=sale)
    if room is None:
        raise NotFound
    return room


def _visit(room: Room, sale: Sale, **what: Any) -> Snapshot:
    """Return the state of a room; raise ServiceUnavailable if it is lost."""
    if room.opened_at is None:
        room = open_room(room=room)
    seen = store.visit(room=room, sale=cached_sale(slug=sale.slug), **what)
    if seen is None:
        row = Room.objects.filter(pk=room.pk).first()
        if row and row.generation != room.generation:
            _rooms.clear()  # staff have reset the room since this process read it
            return _visit(row, sale, **what)
        if room.generation not in _lost:
            _lost.add(room.generation)
            text = "Waiting room of sale %s is closed until staff reset it: Redis lost its places"
            logger.error(text, room.sale_id)
        raise ServiceUnavailable
    if seen.is_drawing:
        lottery.start(room=room, cutoff=seen.cutoff or 0)
    return seen


def open_room(*, room: Room) -> Room:
    """Create the state of a room in Redis, once; return the row as it is now.

    The row is locked meanwhile and says afterwards that the state was created. Places are given
    only from then on: a process that finds no state then knows that it is lost.
    """
    with transaction.atomic():
        row = Room.objects.select_for_update().get(pk=room.pk)
        if row.opened_at is None:
            store.create(room=row)
            row.opened_at = timezone.now()
            row.save(update_fields=["opened_at"])
    return row


def set_inlet(*, room: Room, per_minute: int, staff: User) -> Room:
    """Set the people admitted per minute; return the row.

    This and the following functions raise BadInput, or ServiceUnavailable if nothing was changed.
    """
    text = gettext_noop("People admitted per minute: {old} → {new}.")
    note = entry(text, old=room.inlet_per_minute, new=per_minute)
    return _change(room, (staff, note), inlet_per_minute=per_minute)


def pause(*, room: Room, staff: User) -> Room:
    """Admit no one until `resume`; the turns of those who are admitted do not end."""
    return _change(room, (staff, entry(gettext_noop("Paused."))), is_paused=True)


def resume(*, room: Room, staff: User) -> Room:
    """Admit again; the time of the pause is not made up for."""
    return _change(room, (staff, entry(gettext_noop("Resumed."))), is_paused=False)


def broadcast(*, room: Room, message: str, message_zh: str) -> Room:
    """Show a message to all who wait; an empty one removes it. The admin records the change."""
    return _change(room, message=message.strip(), message_zh=message_zh.strip())


def set_mode(*, room: Room, mode: str, **texts: Any) -> Room:
    """Change the order of admission and the message; raise BadInput once a customer has a place.

    The admin records the change. Redis keeps the mode of a room from the first look at it: without
    places, it starts again.
    """
    with transaction.atomic():
        row = Room.objects.select_for_update().get(pk=room.pk)
        if row.opened_at is None or mode == Room.Mode.NONE:
            _save(row, mode=mode, **texts)
            return row
        if _visit(row, row.sale).joined:
            raise BadInput(_("Customers have places. Reset the room first."))
        seen = Room(sale_id=row.sale_id, generation=row.generation)
        _save(row, mode=mode, generation=new_generation(), opened_at=None, **texts)
        store.delete(room=seen)  # last: an error after that would close the row's generation
    return row


def reset(*, room: Room, reason: str, staff: User) -> Room:
    """Drop all places and the lottery: everyone joins again, under a new seed.

    The only way to open a room whose places Redis has lost. The public record keeps the reason and
    what was dropped: who could repeat a draw unseen could choose its result. Raise BadInput.
    """
    if not reason.strip():
        raise BadInput(_("Give a reason. Everyone can read it in the record of the draw."))
    store.delete(room=room)  # first: no process gives a place that the reset would drop
    fresh = {"seed": new_seed(), "generation": new_generation(), "root": "", "opened_at": None}
    with transaction.atomic():
        row = Room.objects.select_for_update().get(pk=room.pk)
        over = {"commitment": row.commitment, "seed": row.seed, "root": row.root or None}
        over |= {"reset_at": timezone.now().isoformat(timespec="seconds"), "reason": reason.strip()}
        earlier = [*(row.earlier or ()), over]
        note = entry(gettext_noop("Reset: {reason}"), reason=reason)
        _save(row, (staff, note), reason="", earlier=earlier, **fresh)
    return row


def _change(room: Room, by: tuple[User, str] | None = None, **fields: Any) -> Room:
    """Change the row and then Redis, which has to reply before the row is committed."""
    with transaction.atomic():
        row = Room.objects.select_for_update().get(pk=room.pk)
        if fields.get("is_paused") and not row.is_paused:
            fields["reason"] = Room.Reason.PAUSED
        if fields.get("inlet_per_minute", MAX_INLET) < row.inlet_per_minute:
            fields["reason"] = Room.Reason.SLOWED
        _save(row, by, **fields)
        if row.mode != Room.Mode.NONE:
            _visit(row, row.sale)  # admits those who are due by what was set before
            changed = int(time.time()) if "reason" in fields else None
            store.configure(room=row, changed=changed)
    return row


def _save(row: Room, by: tuple[User, str] | None = None, **fields: Any) -> None:
    """Save the fields, and record in the admin who changed what. Raise BadInput."""
    for name, value in fields.items():
        setattr(row, name, value)
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        raise BadInput(" ".join(error.messages)) from error
    row.save(update_fields=fields)
    if by:
        staff, note = by
        LogEntry.objects.log_actions(staff.pk, [row], CHANGE, note, single_object=True)


def clear(**_: object) -> None:
    """Drop what this process remembers of rooms."""
    _rooms.clear()
    _status.clear()
