"""The keys of unique tasks: locks that are handed over to a message and taken over by its delivery.

The lock's owner in the store begins with the id of the message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from locking.claims import Claim
from locking.conf import policy_settings
from locking.exceptions import LockError, LockLost
from locking.handler import locks
from locking.lease import Lease
from locking.lease.lease import Ticket
from locking.lease.steps import run
from locking.names import UNIQUE_PREFIX, ReservedName, storable

logger = logging.getLogger("locking")

HEADER = "locking_unique_ticket"  # ticket, seconds in the queue
PATIENCE = 1.0
"""Seconds after the backend's ttl at which a holder that died is free for certain."""


class KeyHeld(Exception):
    """Another delivery or message holds the key."""


def reserve(
    task: str, key: str, message: str, *, using: str | None, queued_for: float
) -> Lease | str:
    """Return the lease of a key for a new message, or the id of the message that has it."""
    name = storable(f"{UNIQUE_PREFIX}{task}:{key}")
    alias = using or policy_settings()["BACKEND"]
    while isinstance(lease := _acquire(alias, name, message, ttl=queued_for), Claim):
        if first := _message_of(lease):  # else it ended a moment ago
            return first
    return lease


@contextmanager
def handed_over(lease: Lease, queued_for: float) -> Iterator[list[Any]]:
    """Send the message in this block, with the header that it gets; an error frees the key."""
    try:
        yield [lease.hand_over(), queued_for]
    except BaseException:
        with suppress(LockError):
            lease.backend.release(lease.claim, lease.token)
        raise
    finally:
        lease.forget()


def take_over(task: str, ticket: Ticket) -> Lease | None:
    """Return the key's lease for one delivery; None if the store is unavailable.

    Raise KeyHeld if the delivery must not run.
    """
    message = _id_in(ticket["owner"])
    try:
        with suppress(LockLost):
            return take_over_first(ticket)
        # It was delivered again, or was in the queue for too long.
        alias, name, wait = ticket["backend"], ticket["name"], 0.0
        while isinstance(lease := _acquire(alias, name, message, wait), Claim):
            if wait or _message_of(lease) not in (message, ""):
                logger.warning("job %s[%s] not run: its key is held", task, message)
                raise KeyHeld
            wait = locks[alias].ttl + PATIENCE  # by another delivery, which may have died
    except LockError as error:
        logger.warning("job %s[%s] runs without its key: %s", task, message, error)
        return None
    return lease


def take_over_first(ticket: Ticket) -> Lease:
    """Return the lease of the first delivery. Raise LockLost for every other one."""
    store = locks[ticket["backend"]]
    named = {**ticket, "name": ReservedName(ticket["name"])}
    lock = store.take_over(named, ttl=store.ttl)
    lock.owner = f"{_id_in(ticket['owner'])}/{uuid4()}"
    lease = run(lock.grant(lock.owner, 0))
    assert isinstance(lease, Lease)
    return lease


def _acquire(
    alias: str, name: str, message: str, wait: float = 0.0, ttl: float | None = None
) -> Lease | Claim:
    """Return a lease of a new delivery, which is the caller and the owner in every process."""
    lock = locks[alias].lock(ReservedName(name), ttl=ttl)
    lock.owner = f"{message}/{uuid4()}"
    return run(lock.grant(lock.owner, wait))


def _message_of(claim: Claim) -> str:
    return _id_in(claim.holder.owner) if claim.holder else ""


def _id_in(owner: str) -> str:
    return owner.rpartition("/")[0]
