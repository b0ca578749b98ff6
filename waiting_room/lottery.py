"""The draw of a lottery: once, at the opening, for everyone on the list.

The result follows from the seed and the list alone, so a draw that its process did not finish is
repeated by another one with the same result. The lock only saves that work.
"""

import logging
import threading

from django.db import connections

from locking import LockError, locks
from locking.failpoints import reach
from shop.errors import STORE_ERRORS, ServiceUnavailable, ShopError
from waiting_room import store
from waiting_room.models import Room
from waiting_room.tickets import root_of, shuffle, ticket_of

logger = logging.getLogger("waiting_room")

LOCK_TTL = 2.0
"""Seconds after which another process repeats the draw of one that was killed."""

_drawing: set[int] = set()


def start(*, room: Room, cutoff: int) -> None:
    """Draw in a thread of its own, unless this process draws already: a page must not wait."""
    if room.pk not in _drawing:
        _drawing.add(room.pk)
        work = threading.Thread(target=_run, args=(room, cutoff), name="lottery", daemon=True)
        try:
            work.start()
        except RuntimeError:  # no more threads; the next visit tries again
            _drawing.discard(room.pk)


def _run(room: Room, cutoff: int) -> None:
    try:
        draw(room=room, cutoff=cutoff)
    except (ShopError, *STORE_ERRORS) as error:
        logger.warning("Lottery of sale %s failed and will be repeated: %r", room.sale_id, error)
    finally:
        connections.close_all()
        _drawing.discard(room.pk)


def draw(*, room: Room, cutoff: int) -> bool:
    """Order the people on the list at random; return True if this call put the order in force."""
    lock = locks["redis"].lock(f"room:{room.pk}", ttl=LOCK_TTL, until="block")
    if not lock.acquire(timeout=0):
        return False
    try:
        customers = store.arrivals(room=room, until=cutoff)
        tickets = [ticket_of(key=room.ticket_key, customer_id=one) for one in customers]
        root = root_of(tickets)
        # Fixed before anyone can see the seed. Another root: Redis has lost a part of the list.
        row = Room.objects.filter(pk=room.pk, generation=room.generation, root__in=["", root])
        if not row.update(root=root):
            logger.error("Waiting room of sale %s is closed: its list has changed", room.sale_id)
            raise ServiceUnavailable
        reach("room.root_fixed", room=room.pk)
        drawn = shuffle(tickets, seed=room.seed, root=root)
        position = {ticket: number for number, ticket in enumerate(drawn, 1)}
        return store.draw(room=room, positions=map(position.__getitem__, tickets))
    finally:
        try:
            lock.release()
        except LockError as error:
            logger.info("Lock of the lottery of sale %s was lost: %s", room.sale_id, error)
