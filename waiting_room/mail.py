"""The message for those whose turn to buy has come, if they have asked for it."""

from collections.abc import Iterator
from datetime import datetime

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet, Value

from shop.errors import ShopError
from shop.mail.kinds import Kind, kinds, sale_path
from shop.mail.models import Message, Reminder
from waiting_room import service, store
from waiting_room.models import Room


def _open(now: datetime, since: datetime) -> QuerySet[Reminder]:
    running = Reminder.objects.filter(sale__opens_at__lte=now, sale__closes_at__gt=now)
    return running.annotate(minutes=Value(settings.WAITING_ROOM_TURN_SECONDS / 60))


def _due(now: datetime, since: datetime) -> QuerySet[Reminder]:
    """Return the reminders of customers who have their turn."""
    rooms = Room.objects.filter(sale__in=_open(now, since).values("sale"), opened_at__isnull=False)
    open_rooms = rooms.exclude(mode=Room.Mode.NONE).select_related("sale__stock")
    return Reminder.objects.filter(pk__in=[pk for room in open_rooms for pk in _having_turn(room)])


def _having_turn(room: Room) -> Iterator[int]:
    sent = Message.objects.filter(kind="turn", about=room.sale_id, customer=OuterRef("customer"))
    asked = Reminder.objects.filter(~Exists(sent), sale=room.sale_id)
    reminders = dict(asked.values_list("customer", "pk"))
    try:
        service.status_of(sale=room.sale)  # moves admission forward
        yield from map(reminders.__getitem__, store.having_turn(room=room, of=list(reminders)))
    except ShopError:  # of this room alone
        return


def _path(reminder: Reminder) -> str | None:
    place = service.place_of(sale=reminder.sale, customer_id=reminder.customer_id)
    return sale_path(reminder) if place and place.admitted else None


def connect_messages() -> None:
    """Add the kind `turn` to those that the shop sends, before the less urgent ones."""
    known = dict(kinds)
    kinds.clear()
    kinds.update(turn=Kind(_open, _path, about="sale", due=_due), **known)
